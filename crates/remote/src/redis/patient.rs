//! A connection to one server that waits for it no longer than was said when it was made.
//!
//! Owns: the time that a server may be silent, from the first word on. The `redis` crate waits
//! without end for the answer to the first one after it has connected, and for a server that reads
//! nothing (`cluster::ClusterConnection`, 1.8).
//! Invariants: after that time nothing is said or heard over this connection any more. The crate
//! would say the same again: after a part of it, or before the answer to the first.
//! Not here: what is said. A server that says a little again and again is waited for.

use redis::cluster::Connect;
use redis::{Cmd, Connection, ConnectionLike, ErrorKind, IntoConnectionInfo, RedisError};
use redis::{RedisResult, Value};
use std::time::Duration;

pub(super) struct Patient(Connection);

/// Has a silence be an error after which the crate does not try again over this connection.
fn last<T>(result: RedisResult<T>) -> RedisResult<T> {
    result.map_err(|error| match error.is_timeout() {
        true => RedisError::from((ErrorKind::Client, "no answer", error.to_string())),
        false => error,
    })
}

impl Connect for Patient {
    fn connect<T: IntoConnectionInfo>(info: T, patience: Option<Duration>) -> RedisResult<Self> {
        let connection = last(<Connection as Connect>::connect(info, patience))?;
        connection.set_read_timeout(patience)?;
        connection.set_write_timeout(patience)?;
        Ok(Self(connection))
    }

    fn send_packed_command(&mut self, command: &[u8]) -> RedisResult<()> {
        last(self.0.send_packed_command(command))
    }

    /// Nobody needs another one.
    fn set_write_timeout(&self, _: Option<Duration>) -> RedisResult<()> {
        Ok(())
    }

    /// Nobody needs another one.
    fn set_read_timeout(&self, _: Option<Duration>) -> RedisResult<()> {
        Ok(())
    }

    fn recv_response(&mut self) -> RedisResult<Value> {
        last(self.0.recv_response())
    }
}

impl ConnectionLike for Patient {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        last(self.0.req_packed_command(command))
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        last(self.0.req_packed_commands(commands, offset, count))
    }

    fn req_command(&mut self, command: &Cmd) -> RedisResult<Value> {
        last(self.0.req_command(command))
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.0.check_connection()
    }

    fn is_open(&self) -> bool {
        self.0.is_open()
    }
}
