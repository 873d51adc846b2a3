//! Swap devices on other machines.
//!
//! Owns: connections, credentials and the protocols of servers: [`nbd`], and [`redis`] clusters.
//! Invariants: nothing of this is in the processes of a run, nor in `overspill`: a program of its
//! own has the devices open and serves them ([`overspill_device::served`]).
//! Not here: encryption. What comes here was encrypted where the program runs.

mod failure;
#[cfg(test)]
mod hostile;
mod mirror;
pub mod nbd;
pub mod redis;

use overspill_device::file::OpenOptions;
use overspill_device::{Device, DeviceError, SwapKind, SwapSpec};
use rustix::io::Errno;
use std::thread::JoinHandle;

/// What a directory of `tls=DIR` has. NBD's other programs use these names as well.
const AUTHORITIES: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// Opens the place that `spec` names, on whatever machine. Blocks on the file system or the
/// network. What happens to a connection later is told by `say`.
///
/// # Errors
/// As [`Device::open`]; [`DeviceError::Remote`] if there is no such server, or it will not have us.
pub fn open(spec: &SwapSpec, options: &OpenOptions, say: fn(&str)) -> Result<Device, DeviceError> {
    let Some((first, second)) = spec.mirrored() else { return open_one(spec, options, say) };
    let (first, second) = (open_one(&first, options, say)?, open_one(&second, options, say)?);
    Ok(mirror::mirror(first, second, spec, say))
}

/// Starts a thread.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Errno> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
}

fn open_one(spec: &SwapSpec, options: &OpenOptions, say: fn(&str)) -> Result<Device, DeviceError> {
    match &spec.kind {
        SwapKind::Nbd { server, export } => nbd::open(server, export, spec, options, say),
        SwapKind::RedisCluster { nodes } => redis::open(nodes, spec, say),
        _ => Device::open(spec, options),
    }
}
