//! A connection to all servers of a cluster, and what is asked of them.
//!
//! Owns: the commands, and how their answers are read.
//! Invariants: a page is changed by an answer of its own size only. After a failure that is not an
//! answer the connection is not used again: what it receives next may answer something else.

use super::Failure;
use super::cluster::{Cluster, Connection, failure};
use super::keys::{KeyNo, Keys, Run, runs};
use overspill_base::shared::PageBuf;
use overspill_base::{PAGE_SIZE, Slot};
use redis::{Cmd, ConnectionLike, Pipeline, RedisError, Value, cmd, pipe};
use std::time::Duration;

/// Sets fields of a hash and its time to live, in milliseconds, at one stroke.
const PUT: &str = "redis.call('HSET', KEYS[1], unpack(ARGV, 2)) \
                   return redis.call('PEXPIRE', KEYS[1], ARGV[1])";
/// How long a server waits for its replicas before it says how many have written, in milliseconds.
/// Less than a server may take for an answer.
const REPLICATION_MS: u64 = 400;

/// What every page of a run is kept by.
pub(super) struct Terms {
    pub(super) keys: Keys,
    pub(super) replicas: u8,
    pub(super) lease: Duration,
}

/// Why a page could not be written.
pub(super) enum Unwritten {
    /// A server's memory is full.
    Full,
    Failed(Failure),
}

impl From<Failure> for Unwritten {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

pub(super) struct Client {
    connection: Connection,
}

impl Client {
    pub(super) fn connect(cluster: &Cluster) -> Result<Self, Failure> {
        Ok(Self { connection: cluster.connect()? })
    }

    /// The one that is kept, or else a new one. After a failure it must not be kept.
    pub(super) fn kept<'a>(
        kept: &'a mut Option<Self>,
        cluster: &Cluster,
    ) -> Result<&'a mut Self, Failure> {
        match kept {
            Some(client) => Ok(client),
            none => Ok(none.insert(Self::connect(cluster)?)),
        }
    }

    /// Writes pages to adjacent slots.
    pub(super) fn write(
        &mut self,
        terms: &Terms,
        first: Slot,
        pages: &[PageBuf],
    ) -> Result<(), Unwritten> {
        let mut rest = pages;
        for run in runs(first, pages.len() as u32) {
            let (now, later) = rest.split_at(run.slots());
            terms.keys.note(run.key);
            self.put(terms, &run, now)?;
            rest = later;
        }
        Ok(())
    }

    fn put(&mut self, terms: &Terms, run: &Run, pages: &[PageBuf]) -> Result<(), Unwritten> {
        let mut put = cmd("EVAL");
        put.arg(PUT).arg(1).arg(terms.keys.name(run.key)).arg(terms.lease.as_millis() as u64);
        for (field, page) in run.fields.clone().zip(pages) {
            put.arg(field).arg(&page[..]);
        }
        let mut pipeline = pipe();
        pipeline.add_command(put);
        if terms.replicas > 0 {
            pipeline.cmd("WAIT").arg(terms.replicas).arg(REPLICATION_MS);
        }
        let answers = self.ask_in_turn(&pipeline).map_err(|error| unwritten(&error))?;
        match answers.last() {
            Some(Value::Int(replicas)) if *replicas < i64::from(terms.replicas) => {
                let (wanted, there) = (terms.replicas, replicas);
                let what = format!("of {wanted} replicas only {there} have what was written");
                Err(Failure::Broken(what).into())
            }
            _ => Ok(()),
        }
    }

    /// Sends commands to whoever has the key of the first, over one connection.
    fn ask_in_turn(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let packed = pipeline.get_packed_pipeline();
        self.connection.req_packed_commands(&packed, 0, pipeline.len())
    }

    fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        self.connection.req_command(command).map_err(|error| failure(&error))
    }

    /// Reads pages from adjacent slots. Appends the indexes of those that the cluster does not have
    /// to `missing`.
    pub(super) fn read(
        &mut self,
        keys: &Keys,
        first: Slot,
        pages: &mut [PageBuf],
        missing: &mut Vec<usize>,
    ) -> Result<(), Failure> {
        let mut at = 0;
        for run in runs(first, pages.len() as u32) {
            let mut get = cmd("HMGET");
            get.arg(keys.name(run.key)).arg(run.fields.clone().collect::<Vec<_>>());
            let found = match self.ask(&get)? {
                Value::Array(found) if found.len() == run.slots() => found,
                _ => return Err(confused()),
            };
            for value in &found {
                if !fill(&mut pages[at], value)? {
                    missing.push(at);
                }
                at += 1;
            }
        }
        Ok(())
    }

    /// Forgets what is in adjacent slots.
    pub(super) fn forget(&mut self, keys: &Keys, first: Slot, slots: u32) -> Result<(), Failure> {
        for run in runs(first, slots) {
            if run.is_whole() {
                self.remove(keys, run.key)?;
                continue;
            }
            let mut forget = cmd("HDEL");
            self.ask(forget.arg(keys.name(run.key)).arg(run.fields.collect::<Vec<_>>()))?;
        }
        Ok(())
    }

    /// Removes all that is under a key.
    pub(super) fn remove(&mut self, keys: &Keys, key: KeyNo) -> Result<(), Failure> {
        self.ask(cmd("UNLINK").arg(keys.name(key)))?;
        keys.strike(key);
        Ok(())
    }

    /// Lets a key live for another lease.
    pub(super) fn renew(&mut self, terms: &Terms, key: KeyNo) -> Result<(), Failure> {
        let lease = terms.lease.as_millis() as u64;
        self.ask(cmd("PEXPIRE").arg(terms.keys.name(key)).arg(lease)).map(drop)
    }
}

fn unwritten(error: &RedisError) -> Unwritten {
    match error.code() {
        Some("OOM") => Unwritten::Full,
        _ => Unwritten::Failed(failure(error)),
    }
}

fn confused() -> Failure {
    Failure::Broken("a server's answer is not what was asked for".into())
}

/// Takes a page from an answer; false if there is none.
fn fill(page: &mut PageBuf, value: &Value) -> Result<bool, Failure> {
    match value {
        Value::Nil => Ok(false),
        Value::BulkString(bytes) if bytes.len() == PAGE_SIZE => {
            page.copy_from_slice(bytes);
            Ok(true)
        }
        _ => Err(confused()),
    }
}
