//! A cluster as a swap device.
//!
//! Owns: what was agreed on when it was opened, and the end of a run's keys.
//! Invariants: a cluster that would throw pages away is refused before anything is written.
//! Not here: transfers ([`super::queue`]).

use super::Failure;
use super::client::{Client, Terms};
use super::cluster::{Cluster, Facts};
use super::keys::Keys;
use super::lease::Lease;
use super::queue::{RedisQueue, Target};
use overspill_base::sync::{LockClass, Mutex};
use overspill_base::{PAGE_SIZE, Slot};
use overspill_device::file::Attachment;
use overspill_device::spec::{ClusterOptions, Discard, Endpoint};
use overspill_device::{Device, DeviceError, DeviceInfo, IoQueue, SwapDevice, SwapSpec};
use rustix::io::Errno;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections of a queue to each server, if the user does not say.
const USUAL_CONNECTIONS: u8 = 4;
const USUAL_LEASE: Duration = Duration::from_secs(3600);
/// How long the end of a run may take. What is left then ends with the lease.
const FAREWELL: Duration = Duration::from_secs(5);

/// Opens a cluster for swapping.
pub(crate) fn open(
    nodes: &[Endpoint],
    spec: &SwapSpec,
    say: fn(&str),
) -> Result<Device, DeviceError> {
    let name = spec.kind.to_string();
    let remote =
        |failure: Failure| DeviceError::Remote { name: name.clone(), why: failure.to_string() };
    let (target, facts) = Target::open(nodes, spec, say).map_err(remote)?;
    let attachment = attachment(&target, &facts, spec);
    let target = Arc::new(target);
    let refused = |errno| DeviceError::Queue { name: name.clone(), errno };
    let lease = Lease::start(target.clone()).map_err(refused)?;
    let control = Mutex::new(LockClass::ServedDevice, None);
    let device = RedisDevice { lease: Some(lease), info: attachment.info(), control, target };
    Ok(Device::Remote { device: Arc::new(device), attachment: Box::new(attachment) })
}

impl Target {
    fn open(nodes: &[Endpoint], spec: &SwapSpec, say: fn(&str)) -> Result<(Self, Facts), Failure> {
        let cluster = Cluster::new(nodes, spec)?;
        let mut connection = cluster.connect()?;
        let facts = cluster.facts(&mut connection)?;
        let options = &spec.cluster;
        let slots = slots(options, &facts)?;
        let target = Self {
            name: spec.kind.to_string(),
            cluster,
            terms: Terms {
                keys: Keys::for_slots(slots)?,
                replicas: replicas(options, &facts)?,
                lease: options.lease.unwrap_or(USUAL_LEASE),
            },
            connections: spec.connections.unwrap_or(USUAL_CONNECTIONS),
            timeout: spec.timeout,
            slots,
            say,
        };
        Ok((target, facts))
    }
}

/// How many slots the cluster has for us.
fn slots(options: &ClusterOptions, facts: &Facts) -> Result<u32, Failure> {
    let refused = |why: String| Err(Failure::Refused(why));
    if let Some(policy) = &facts.eviction {
        return refused(format!(
            "a full server would throw pages away (maxmemory-policy {policy}): set noeviction"
        ));
    }
    let Some(size) = options.size.or(facts.room) else {
        return refused("a server has no maxmemory: say with size= how much to put there".into());
    };
    match u32::try_from(size.0 / PAGE_SIZE as u64).unwrap_or(u32::MAX) {
        0 | 1 => refused("there is no room for a page: raise maxmemory, or give size=".into()),
        slots => Ok(slots),
    }
}

/// How many replicas must have a page.
fn replicas(options: &ClusterOptions, facts: &Facts) -> Result<u8, Failure> {
    let wanted = options.replicas.unwrap_or(facts.replicas.min(1));
    if wanted > facts.replicas {
        let there = facts.replicas;
        return Err(Failure::Refused(format!(
            "replicas={wanted}, but a shard has only {there}: add replicas, or ask for fewer"
        )));
    }
    Ok(wanted)
}

fn attachment(target: &Target, facts: &Facts, spec: &SwapSpec) -> Attachment {
    let (shards, replicas) = (facts.shards, target.terms.replicas);
    let mut attachment = Attachment {
        name: target.name.clone(),
        slots_max: target.slots,
        reserved: vec![0],
        rotational: spec.ssd.is_some_and(|ssd| !ssd),
        synchronous: false,
        discards: true,
        // Its memory is others' too.
        page_discard: spec.discard.is_none_or(Discard::of_freed),
        grows: false,
        was_empty: false,
        algorithm: None,
        encrypted: false,
        served: true,
        notes: vec![format!("{shards} shards, a page in {replicas} replicas besides")],
    };
    attachment.encrypt_as(spec);
    attachment
}

/// A cluster used as swap.
struct RedisDevice {
    /// Dropped by hand, before the keys are removed.
    lease: Option<Lease>,
    target: Arc<Target>,
    info: DeviceInfo,
    /// For discarding, made when it is first needed.
    control: Mutex<Option<Client>>,
}

impl Debug for RedisDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisDevice").field("name", &self.target.name).finish_non_exhaustive()
    }
}

impl RedisDevice {
    fn forget(&self, first: Slot, slots: u32) -> Result<(), Failure> {
        let mut control = self.control.lock();
        let client = Client::kept(&mut control, &self.target.cluster)?;
        let forgotten = client.forget(&self.target.terms.keys, first, slots);
        control.take_if(|_| forgotten.is_err());
        forgotten
    }
}

impl SwapDevice for RedisDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let (all, size) = (self.info.slots_max, self.target.size());
        let name = || self.info.name.clone();
        if slots <= all { Ok(all) } else { Err(DeviceError::Full { name: name(), size }) }
    }

    /// Waits for the cluster, for some seconds at most.
    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        assert!(u64::from(first.0) + u64::from(slots) <= u64::from(self.info.slots_max));
        self.forget(first, slots).map_err(|_| DeviceError::Discard {
            name: self.info.name.clone(),
            first,
            errno: Errno::IO,
        })
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let name = || self.info.name.clone();
        let queue = RedisQueue::new(self.target.clone(), depth);
        Ok(Box::new(queue.map_err(|errno| DeviceError::Queue { name: name(), errno })?))
    }
}

impl Drop for RedisDevice {
    /// Removes what the run has left, as far as the cluster answers.
    fn drop(&mut self) {
        drop(self.lease.take());
        let (keys, begun) = (&self.target.terms.keys, Instant::now());
        let Some(_) = keys.noted().next() else { return };
        let Ok(mut client) = Client::connect(&self.target.cluster) else { return };
        for key in keys.noted() {
            if begun.elapsed() > FAREWELL || client.remove(keys, key).is_err() {
                return;
            }
        }
    }
}
