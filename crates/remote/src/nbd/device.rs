//! An export of a server as a swap device.
//!
//! Owns: what is known of the export, how another connection to it is made, and one connection for
//! discarding.
//! Invariants: every connection that is given out leads to the export on which the run began.
//! Not here: transfers ([`super::queue`]).

use super::Failure;
use super::area::{Area, Mark, Probe};
use super::connection::Connection;
use super::handshake::{Export, negotiate};
use super::queue::NbdQueue;
use super::socket::Socket;
use super::tls::Credentials;
use overspill_base::sync::{LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE, Slot};
use overspill_device::file::{Attachment, OpenOptions};
use overspill_device::spec::{Discard, Endpoint};
use overspill_device::{
    Device, DeviceError, DeviceInfo, IoQueue, MAX_REQUEST_PAGES, SwapDevice, SwapSpec,
};
use rustix::io::Errno;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

/// Connections of a queue, if the user does not say and the server allows several.
const USUAL_CONNECTIONS: u8 = 2;

/// An export, and how to reach it.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) connections: u8,
    /// How long a silent server is waited for, if not for ever.
    pub(super) timeout: Option<Duration>,
    /// Takes lines for the user.
    pub(super) say: fn(&str),
    place: Place,
    terms: Export,
    mark: Mark,
    slots: u32,
}

/// Where an export is.
struct Place {
    server: Endpoint,
    export: String,
    credentials: Option<Credentials>,
}

impl Place {
    fn of(spec: &SwapSpec, server: &Endpoint, export: &str) -> Result<Self, Failure> {
        let load = |tls| Credentials::load(tls, server);
        let credentials = spec.tls.as_ref().map(load).transpose()?;
        Ok(Self { server: server.clone(), export: export.to_owned(), credentials })
    }

    fn connect(&self) -> Result<(Probe, Export), Failure> {
        let socket = Socket::connect(&self.server)?;
        let (stream, terms) = negotiate(socket, self.credentials.as_ref(), &self.export)?;
        stream.stop_blocking()?;
        Ok((Probe::new(Connection::new(stream))?, terms))
    }
}

impl Target {
    fn open(
        spec: &SwapSpec,
        place: Place,
        force: bool,
        say: fn(&str),
    ) -> Result<(Self, Area), Failure> {
        let (mut probe, terms) = place.connect()?;
        let slots = usable_slots(terms)?;
        let connections = connections(spec.connections, terms)?;
        let area = probe.claim(slots, force)?;
        probe.into_connection().take_leave();
        let target = Self {
            name: spec.kind.to_string(),
            connections,
            timeout: spec.timeout,
            say,
            place,
            terms,
            mark: area.mark,
            slots: area.slots,
        };
        Ok((target, area))
    }

    pub(super) fn size(&self) -> Bytes {
        Bytes::of_pages(self.slots.into())
    }

    /// Makes a connection. Blocks until it is there, or cannot be.
    pub(super) fn connect(&self) -> Result<Connection, Failure> {
        let (mut probe, terms) = self.place.connect()?;
        if terms.size_bytes < self.terms.size_bytes || terms.is_read_only() {
            let why = "the export has become smaller, or read-only; have it as it was";
            return Err(Failure::Refused(why.into()));
        }
        if !probe.is_marked(self.mark)? {
            let why = "the server has another export now, or an empty one: what was there is lost";
            return Err(Failure::Gone(why.into()));
        }
        Ok(probe.into_connection())
    }
}

/// The slots of an export, if it can be swapped to.
fn usable_slots(terms: Export) -> Result<u32, Failure> {
    let refused = |why: &str| Err(Failure::Refused(why.into()));
    let slots = u32::try_from(terms.size_bytes / PAGE_SIZE as u64).unwrap_or(u32::MAX);
    match terms {
        _ if terms.is_read_only() => refused("the export is read-only; have it exported writable"),
        _ if slots < 2 => refused("the export has no room for a page; name a larger one"),
        _ if terms.block_bytes_min as usize > PAGE_SIZE => refused(
            "the export's blocks are larger than a page; have it exported with smaller ones",
        ),
        _ if (terms.request_bytes_max as usize) < MAX_REQUEST_PAGES * PAGE_SIZE => {
            refused("the server takes less than 1 MiB at a time; have it take more")
        }
        _ => Ok(slots),
    }
}

/// How many connections a queue may have.
fn connections(wanted: Option<u8>, terms: Export) -> Result<u8, Failure> {
    match (wanted, terms.has_several_connections()) {
        (Some(2..), false) => Err(Failure::Refused(
            "the server does not promise that several connections see the same; leave connections= out"
                .into(),
        )),
        (None, true) => Ok(USUAL_CONNECTIONS),
        (wanted, _) => Ok(wanted.unwrap_or(1)),
    }
}

/// Opens an export for swapping.
pub(crate) fn open(
    server: &Endpoint,
    export: &str,
    spec: &SwapSpec,
    options: &OpenOptions,
    say: fn(&str),
) -> Result<Device, DeviceError> {
    let name = spec.kind.to_string();
    let opened = Place::of(spec, server, export)
        .and_then(|place| Target::open(spec, place, options.force, say));
    let remote =
        |failure: Failure| DeviceError::Remote { name: name.clone(), why: failure.to_string() };
    let (target, area) = opened.map_err(remote)?;
    let attachment = attachment(&target, &area, spec);
    let device = NbdDevice::new(target, &attachment);
    if spec.discard.is_some_and(Discard::at_open) && device.info.discards {
        device.discard(Slot(1), area.slots - 1)?;
    }
    Ok(Device::Remote { device: Arc::new(device), attachment: Box::new(attachment) })
}

fn attachment(target: &Target, area: &Area, spec: &SwapSpec) -> Attachment {
    let discards = target.terms.trims();
    let mut notes = vec![format!("{} connections", target.connections)];
    if spec.discard.is_some() && !discards {
        notes.push("discard= does nothing here: the server does not trim".into());
    }
    let mut attachment = Attachment {
        name: target.name.clone(),
        slots_max: area.slots,
        reserved: [0].into_iter().chain(area.bad.iter().map(|slot| slot.0)).collect(),
        rotational: spec.ssd.map_or(target.terms.is_rotational(), |ssd| !ssd),
        synchronous: false,
        discards,
        page_discard: discards && spec.discard.is_some_and(Discard::of_freed),
        grows: false,
        was_empty: false,
        algorithm: None,
        encrypted: false,
        served: true,
        notes,
    };
    attachment.encrypt_as(spec);
    attachment
}

/// An export used as swap.
pub(super) struct NbdDevice {
    target: Arc<Target>,
    info: DeviceInfo,
    /// For discarding, made when it is first needed.
    control: Mutex<Option<Connection>>,
}

impl Debug for NbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdDevice").field("name", &self.target.name).finish_non_exhaustive()
    }
}

impl NbdDevice {
    fn new(target: Target, attachment: &Attachment) -> Self {
        let control = Mutex::new(LockClass::ServedDevice, None);
        Self { target: Arc::new(target), info: attachment.info(), control }
    }

    fn trim(&self, first: Slot, slots: u32) -> Result<(), Failure> {
        let mut control = self.control.lock();
        let mut connection = control.take().map_or_else(|| self.target.connect(), Ok)?;
        for (first, slots) in pieces(first, slots) {
            connection.push_trim(first, slots);
            let (_, result) = connection.finish()?;
            result.map_err(|errno| Failure::Refused(errno.to_string()))?;
        }
        *control = Some(connection);
        Ok(())
    }
}

/// Slots that one request may discard: a length has 32 bits.
const TRIM_SLOTS: u32 = (1 << 30) / PAGE_SIZE as u32;

fn pieces(first: Slot, slots: u32) -> impl Iterator<Item = (Slot, u32)> {
    let starts = (0..slots).step_by(TRIM_SLOTS as usize);
    starts.map(move |start| (Slot(first.0 + start), TRIM_SLOTS.min(slots - start)))
}

impl SwapDevice for NbdDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let all = self.info.slots_max;
        let (name, size) = (|| self.info.name.clone(), Bytes::of_pages(all.into()));
        if slots <= all { Ok(all) } else { Err(DeviceError::Full { name: name(), size }) }
    }

    /// Waits for the server, for some seconds at most.
    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        assert!(u64::from(first.0) + u64::from(slots) <= u64::from(self.info.slots_max));
        // The header is left alone.
        let (skipped, name) = (u32::from(first.0 == 0).min(slots), self.info.name.clone());
        self.trim(Slot(first.0 + skipped), slots - skipped).map_err(|_| DeviceError::Discard {
            name,
            first,
            errno: Errno::IO,
        })
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let name = || self.info.name.clone();
        let queue = NbdQueue::new(self.target.clone(), depth);
        Ok(Box::new(queue.map_err(|errno| DeviceError::Queue { name: name(), errno })?))
    }
}
