//! A value as a message.
//!
//! Invariants: see the crate.
//! Not here: how it is sent ([`Link`](crate::Link)).

use crate::descriptor::pass;
use rustix::fd::OwnedFd;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;

/// Bytes that a message may have.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Descriptors that a message may have: those of a guest are the most.
pub const DESCRIPTORS_MAX: usize = 11;

/// A value as a message.
#[derive(Debug, Default)]
pub struct Encoded {
    /// What it is, but for its descriptors.
    pub bytes: Vec<u8>,
    /// Copies, in the order of its fields.
    pub descriptors: Vec<OwnedFd>,
}

/// Why a value is no message, or a message no value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// It does not fit.
    #[error("it has more than {MESSAGE_BYTES_MAX} bytes: give shorter paths to --swap")]
    Long,
    /// A part of it cannot be written, such as a descriptor of which there can be no copy.
    #[error("it cannot be written ({0}); raise `ulimit -n`")]
    Write(postcard::Error),
    /// What came is no such value.
    #[error("it is none ({0}): was the program replaced while it ran?")]
    Read(postcard::Error),
    /// There are more bytes or descriptors than it has.
    #[error("{bytes} bytes and {descriptors} descriptors too many have come with it")]
    Rest {
        /// How many of its bytes.
        bytes: usize,
        /// How many of its descriptors.
        descriptors: usize,
    },
}

/// Writes a value as a message.
///
/// # Errors
/// [`MessageError::Long`], [`MessageError::Write`].
pub fn encode(value: &impl Serialize) -> Result<Encoded, MessageError> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let before = pass(VecDeque::new());
    let written = postcard::to_slice(value, &mut bytes).map(|written| written.len());
    let descriptors = pass(before).into();
    match written {
        Ok(written) => bytes.truncate(written),
        Err(postcard::Error::SerializeBufferFull) => return Err(MessageError::Long),
        Err(why) => return Err(MessageError::Write(why)),
    }
    Ok(Encoded { bytes, descriptors })
}

/// Reads a message as a value of a type.
///
/// # Errors
/// [`MessageError::Read`], [`MessageError::Rest`].
pub fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    descriptors: Vec<OwnedFd>,
) -> Result<T, MessageError> {
    let before = pass(descriptors.into());
    let read = postcard::take_from_bytes(bytes);
    let left = pass(before);
    match read.map_err(MessageError::Read)? {
        (value, []) if left.is_empty() => Ok(value),
        (_, rest) => Err(MessageError::Rest { bytes: rest.len(), descriptors: left.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{self, Descriptor};
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use serde::Deserialize;

    #[derive(Debug, Serialize, Deserialize)]
    enum Said {
        Name(String),
        Files {
            number: u64,
            #[serde(with = "descriptor")]
            first: OwnedFd,
            others: Option<[Descriptor; 2]>,
        },
    }

    /// A file that is known by its size.
    fn file(bytes: u64) -> OwnedFd {
        let file = memfd_create("message", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        file
    }

    fn encoded(others: bool) -> Encoded {
        let others = others.then(|| [file(2).into(), file(3).into()]);
        encode(&Said::Files { number: 7, first: file(1), others }).unwrap()
    }

    #[test]
    fn descriptors_come_in_their_places() {
        let Encoded { bytes, descriptors } = encoded(true);
        let Said::Files { number: 7, first, others: Some(others) } =
            decode(&bytes, descriptors).unwrap()
        else {
            panic!("something else was read")
        };
        let bytes = others.map(|other| fstat(&other).unwrap().st_size);
        assert_eq!((fstat(&first).unwrap().st_size, bytes), (1, [2, 3]));
    }

    #[test]
    fn as_many_descriptors_come_as_there_are() {
        let Encoded { bytes, mut descriptors } = encoded(true);
        let last = descriptors.pop();
        let error = decode::<Said>(&bytes, descriptors).unwrap_err();
        assert!(matches!(error, MessageError::Read(_)), "{error}");
        let Encoded { bytes, mut descriptors } = encoded(false);
        descriptors.extend(last);
        let error = decode::<Said>(&bytes, descriptors).unwrap_err();
        assert_eq!(error, MessageError::Rest { bytes: 0, descriptors: 1 });
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let long = |bytes| encode(&Said::Name("x".repeat(bytes))).map(|encoded| encoded.bytes);
        assert_eq!(long(MESSAGE_BYTES_MAX), Err(MessageError::Long));
        let mut bytes = long(MESSAGE_BYTES_MAX - 10).unwrap();
        bytes.push(0);
        let error = decode::<Said>(&bytes, Vec::new()).unwrap_err();
        assert_eq!(error, MessageError::Rest { bytes: 1, descriptors: 0 });
    }
}
