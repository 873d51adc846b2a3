//! Authenticated encryption of what one slot holds.
//!
//! Owns: which cipher this machine uses, and what it is given: a key of its own, and a nonce of
//! slot and write.
//! Invariants: a nonce is used for one content only ([`super::table`] counts the writes); the slot
//! and the write are in it, so that content of another slot or of an earlier write never opens. The
//! key stays where the kernel drew it ([`Secret`]): what a cipher makes of it on the stack is wiped
//! before the call returns.
//! Not here: the ciphers.
//! Rejected: the number of the page as associated data. A page keeps its slot when its program
//! moves it by mremap, and the tag, which nobody else can write, names the slot's last content
//! alone. AES-GCM of `ring`: 1.9 times the time of AEGIS-128L per page, and a key schedule of its
//! own in each process (`docs/dependencies.md`).

use aegis::aegis128l::Aegis128L;
use overspill_base::Slot;
use overspill_base::secret::Secret;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustix::io::Errno;
use std::hint::black_box;
use std::sync::Arc;

/// A tag: what is needed, besides the key, to open a slot's content.
pub(super) type Tag = [u8; 16];

/// One write of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) slot: Slot,
    /// Different for every write of the slot.
    pub(super) number: u64,
}

impl Write {
    fn nonce<const BYTES: usize>(self) -> [u8; BYTES] {
        let mut nonce = [0; BYTES];
        nonce[..8].copy_from_slice(&self.number.to_le_bytes());
        nonce[8..12].copy_from_slice(&self.slot.0.to_le_bytes());
        nonce
    }
}

/// What pages are encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// AEGIS-128L: with the processor's instructions for AES, several bytes a cycle.
    Aegis128L,
    /// ChaCha20-Poly1305, for processors without them.
    ChaCha20Poly1305,
}

impl Algorithm {
    /// The faster one on this machine. All processes of a run choose alike.
    pub fn of_this_machine() -> Self {
        if has_aes() { Self::Aegis128L } else { Self::ChaCha20Poly1305 }
    }

    /// Its name, for the user.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aegis128L => "AEGIS-128L",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("avx")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

/// A cipher with a key that it has alone. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Cipher {
    algorithm: Algorithm,
    secret: Arc<Secret>,
}

impl Cipher {
    /// Draws a key.
    pub(super) fn new(algorithm: Algorithm) -> Result<Self, Errno> {
        Ok(Self { algorithm, secret: Arc::new(Secret::draw()?) })
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Encrypts `bytes` in place.
    pub(super) fn seal(&self, write: Write, bytes: &mut [u8]) -> Tag {
        let tag = self.seal_unwiped(write, bytes);
        self.wipe_stack();
        tag
    }

    /// Decrypts `bytes` in place; false if they are not what `tag` was made of, and then they are
    /// undefined.
    #[must_use]
    pub(super) fn open(&self, write: Write, tag: &Tag, bytes: &mut [u8]) -> bool {
        let is_opened = self.open_unwiped(write, tag, bytes);
        self.wipe_stack();
        is_opened
    }

    #[inline(never)]
    fn seal_unwiped(&self, write: Write, bytes: &mut [u8]) -> Tag {
        match self.algorithm {
            Algorithm::Aegis128L => self.aegis(write).encrypt_in_place(bytes, &[]),
            Algorithm::ChaCha20Poly1305 => {
                let nonce = Nonce::assume_unique_for_key(write.nonce());
                let tag = self.chacha().seal_in_place_separate_tag(nonce, Aad::empty(), bytes);
                let tag = tag.expect("less than 256 GiB are encrypted at a time");
                tag.as_ref().try_into().expect("its tags have 16 bytes")
            }
        }
    }

    #[inline(never)]
    fn open_unwiped(&self, write: Write, tag: &Tag, bytes: &mut [u8]) -> bool {
        match self.algorithm {
            Algorithm::Aegis128L => self.aegis(write).decrypt_in_place(bytes, tag, &[]).is_ok(),
            Algorithm::ChaCha20Poly1305 => {
                let nonce = Nonce::assume_unique_for_key(write.nonce());
                let (key, tag) = (self.chacha(), (*tag).into());
                key.open_in_place_separate_tag(nonce, Aad::empty(), tag, bytes, 0..).is_ok()
            }
        }
    }

    /// As much as the cipher takes of it at most, with room to spare, in test builds too.
    fn wipe_stack(&self) {
        match self.algorithm {
            Algorithm::Aegis128L => wipe::<2048>(),
            Algorithm::ChaCha20Poly1305 => wipe::<8192>(),
        }
    }

    pub(super) fn key<const BYTES: usize>(&self) -> &[u8; BYTES] {
        self.secret.bytes().first_chunk().expect("a secret has more bytes than a key")
    }

    fn aegis(&self, write: Write) -> Aegis128L<16> {
        Aegis128L::new(self.key(), &write.nonce())
    }

    fn chacha(&self) -> LessSafeKey {
        let key = UnboundKey::new(&CHACHA20_POLY1305, self.key::<32>());
        LessSafeKey::new(key.expect("its keys have 32 bytes"))
    }
}

/// Overwrites what calls before this one have left below the caller's frame.
#[inline(never)]
fn wipe<const BYTES: usize>() {
    black_box(&mut [0u8; BYTES]);
}
