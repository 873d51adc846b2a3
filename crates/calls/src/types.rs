//! A system call and its arguments.

/// What an argument leads to. A number in it is the index of another argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// Nothing: a number, a descriptor, an address that is neither read nor written.
    Value,
    /// So many bytes.
    Bytes(u16),
    /// As many bytes as an argument says.
    Sized(u8),
    /// As many items as an argument says, of so many bytes.
    Items(u8, u16),
    /// As many bits as an argument says, in whole words.
    Bits(u8),
    /// As many bytes as the int says that an argument points to.
    SizedAt(u8),
    /// A string.
    Str,
    /// Pointers to strings, up to a null pointer.
    Strs,
    /// As many vectors as an argument says, and what they point to.
    Vectors(u8),
    /// As above, but what they point to is in another process.
    Headers(u8),
    /// A message header, and what it points to.
    Message,
    /// As many of these as an argument says.
    Messages(u8),
    /// A signal mask and its size, in two words.
    Mask,
    /// A number and as many bytes of a message as an argument says.
    Queued(u8),
    /// As many pointers as an argument says; what they point to is not touched.
    Pointers(u8),
    /// As many bytes as an argument says, and what pointers among them lead to.
    Pointing(u8),
    /// A byte for each page of as many bytes as an argument says.
    PerPage(u8),
    /// What the request number of an ioctl says, and what pointers in it lead to.
    Ioctl,
    /// What a command says, of fcntl, prctl and others: a number, or a structure.
    Command,
    /// A word, and what the operation of the futex says.
    Futex,
    /// As many futexes as an argument says, and their words.
    Futexes(u8),
}

/// The most arguments that a call has.
pub const ARGS_MAX: usize = 6;

/// A system call.
#[derive(Debug)]
pub struct Call {
    /// Its number on this architecture.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// Its arguments, as far as they matter.
    pub args: &'static [Arg],
}
