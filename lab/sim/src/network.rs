//! Servers on a network, which keep the slots of many machines.
//!
//! Owns: when a request is done that passes its machine's client and link, its server and that
//! one's link, and for a write the server's replica.
//! Invariants: each of them does one thing after the other, in the order of submission. A slot is
//! with the same server until that dies, and then with the next one, which is its replica.
//! Not here: content (`device`); errors: what a dead server has is with its replica.

use overspill_base::Slot;
use overspill_device::IoOp;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard};

/// Nanoseconds that somebody is busy with a request.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Service {
    /// For the request.
    pub request_ns: u64,
    /// For each of its pages.
    pub page_ns: u64,
}

impl Service {
    fn of(self, pages: usize) -> u64 {
        self.request_ns + pages as u64 * self.page_ns
    }
}

/// What servers, and the ways to them, are like.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NetworkModel {
    /// The source of its figures.
    pub source: &'static str,
    /// From a machine to a server and back, without anything to carry or to do.
    pub round_trip_ns: u64,
    /// A page on a link, which is one in each direction at every machine and server.
    pub link: Service,
    /// The thread of a machine that all of its requests pass.
    pub client: Service,
    /// A server that reads.
    pub read: Service,
    /// A server that writes, whether it is the first or its replica.
    pub write: Service,
    /// From a death until another one serves what the dead one had.
    pub failover_ns: u64,
}

/// A Redis cluster in a data center.
pub const REDIS_NETWORK: NetworkModel = NetworkModel {
    source: "servers: CPU time of redis-server 7.0 for HMGET, and for the script with HSET, with 1, 16 \
             and 64 pages; client: 64 000 random pages a second through the supervisor; round trip: \
             Guo and others, Pingmesh (SIGCOMM 2015), median between pods; links: 10 Gbit/s; \
             failover: cluster-node-timeout 2 s, and an election",
    round_trip_ns: 268_000,
    link: Service { request_ns: 0, page_ns: 3_400 },
    client: Service { request_ns: 15_600, page_ns: 1_000 },
    read: Service { request_ns: 9_500, page_ns: 1_000 },
    write: Service { request_ns: 10_000, page_ns: 5_800 },
    failover_ns: 2_500_000_000,
};

/// The servers of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Network {
    /// What they are like.
    pub model: NetworkModel,
    /// How many.
    pub servers: usize,
    /// Of them die when counting begins, every second one.
    pub deaths: usize,
}

/// Whatever does one thing after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    free_ns: u64,
    busy_ns: u64,
}

impl Lane {
    /// Returns when something is done that comes at `at_ns` and takes `takes_ns`.
    fn serve(&mut self, at_ns: u64, takes_ns: u64) -> u64 {
        self.free_ns = at_ns.max(self.free_ns) + takes_ns;
        self.busy_ns += takes_ns;
        self.free_ns
    }
}

/// A link's two directions, seen from its owner.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    inward: Lane,
    outward: Lane,
}

#[derive(Clone, Copy, Debug, Default)]
struct Server {
    link: Link,
    work: Lane,
}

#[derive(Debug)]
struct State {
    servers: Vec<Server>,
    /// When some die.
    death_ns: u64,
}

/// All servers.
#[derive(Debug)]
pub(crate) struct Servers {
    network: Network,
    state: Mutex<State>,
}

impl Servers {
    pub(crate) fn new(network: Network) -> Self {
        let servers = vec![Server::default(); network.servers];
        Self { network, state: Mutex::new(State { servers, death_ns: u64::MAX }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// Has those that are to die do so at `at_ns`.
    pub(crate) fn die_at(&self, at_ns: u64) {
        self.lock().death_ns = at_ns;
    }

    /// Nanoseconds that each has worked, or will have for what it was asked.
    pub(crate) fn busy_ns(&self) -> Vec<u64> {
        self.lock().servers.iter().map(|server| server.work.busy_ns).collect()
    }

    fn next(&self, server: usize) -> usize {
        (server + 1) % self.network.servers
    }

    fn dies(&self, server: usize) -> bool {
        server.is_multiple_of(2) && server / 2 < self.network.deaths
    }

    /// Returns who serves `server`'s part, and from when on, for what arrives at `at_ns`.
    fn alive(&self, death_ns: u64, server: usize, at_ns: u64) -> (usize, u64) {
        if at_ns < death_ns || !self.dies(server) {
            return (server, at_ns);
        }
        (self.next(server), at_ns.max(death_ns + self.network.model.failover_ns))
    }

    /// Returns when the answer to a request of `pages` pages leaves its server.
    fn ask(&self, op: IoOp, home: usize, pages: usize, sent_ns: u64) -> u64 {
        let NetworkModel { link, read, write, .. } = self.network.model;
        let mut state = self.lock();
        let (number, at_ns) = self.alive(state.death_ns, home, self.across(sent_ns));
        match op {
            IoOp::Read => {
                let server = &mut state.servers[number];
                let done_ns = server.work.serve(at_ns, read.of(pages));
                server.link.outward.serve(done_ns, link.of(pages))
            }
            IoOp::Write => {
                let server = &mut state.servers[number];
                let here_ns = server.link.inward.serve(at_ns, link.of(pages));
                let done_ns = server.work.serve(here_ns, write.of(pages));
                let passed_ns = server.link.outward.serve(done_ns, link.of(pages));
                self.replicate(&mut state, number, pages, passed_ns)
            }
        }
    }

    /// Returns when a server knows that its replica has what left it at `passed_ns`; a replica that
    /// is dead is not waited for.
    fn replicate(&self, state: &mut State, server: usize, pages: usize, passed_ns: u64) -> u64 {
        let NetworkModel { link, write, .. } = self.network.model;
        let replica = self.next(server);
        let at_ns = self.across(passed_ns);
        if replica == server || at_ns >= state.death_ns && self.dies(replica) {
            return passed_ns;
        }
        let replica = &mut state.servers[replica];
        let here_ns = replica.link.inward.serve(at_ns, link.of(pages));
        self.across(replica.work.serve(here_ns, write.of(pages)))
    }

    /// Returns when something that leaves at `at_ns` is on the other side.
    fn across(&self, at_ns: u64) -> u64 {
        at_ns + self.network.model.round_trip_ns / 2
    }
}

/// Slots whose pages are with the same server.
const PART_SLOTS: u64 = 256;

/// One machine's way to the servers.
#[derive(Debug)]
pub(crate) struct Client {
    machine: usize,
    servers: Arc<Servers>,
    lanes: Mutex<ClientLanes>,
}

#[derive(Debug)]
struct ClientLanes {
    thread: Lane,
    link: Link,
    /// When each of its requests at a time has been answered.
    connections: Vec<u64>,
}

impl Client {
    /// The client of a machine with so many requests at a time.
    pub(crate) fn new(machine: usize, servers: Arc<Servers>, connections: usize) -> Self {
        let (thread, link) = (Lane::default(), Link::default());
        let lanes = ClientLanes { thread, link, connections: vec![0; connections] };
        Self { machine, servers, lanes: Mutex::new(lanes) }
    }

    /// Returns when a request that is submitted at `now_ns` is done.
    pub(crate) fn request(&self, op: IoOp, slot: Slot, pages: usize, now_ns: u64) -> u64 {
        let NetworkModel { client, link, .. } = self.servers.network.model;
        let mut lanes = self.lanes.lock().expect("nobody panics with it");
        let ready_ns = lanes.thread.serve(now_ns, client.of(pages));
        let (connection, &free_ns) = lanes
            .connections
            .iter()
            .enumerate()
            .min_by_key(|(_, free)| **free)
            .expect("a client has a connection");
        let begin_ns = ready_ns.max(free_ns);
        let sent_ns = match op {
            IoOp::Read => begin_ns,
            IoOp::Write => lanes.link.outward.serve(begin_ns, link.of(pages)),
        };
        let answered_ns = self.servers.ask(op, self.home(slot), pages, sent_ns);
        let back_ns = self.servers.across(answered_ns);
        let done_ns = match op {
            IoOp::Read => lanes.link.inward.serve(back_ns, link.of(pages)),
            IoOp::Write => back_ns,
        };
        lanes.connections[connection] = done_ns;
        done_ns
    }

    /// The server that a slot is with, while it lives: any, as by a hash.
    fn home(&self, slot: Slot) -> usize {
        let part = ((self.machine as u64) << 32) + u64::from(slot.0) / PART_SLOTS;
        fastrand::Rng::with_seed(part).usize(..self.servers.network.servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Service = Service { request_ns: 10, page_ns: 0 };
    const MODEL: NetworkModel = NetworkModel {
        source: "",
        round_trip_ns: 100,
        link: Service { request_ns: 0, page_ns: 1 },
        client: TEN,
        read: TEN,
        write: TEN,
        failover_ns: 5000,
    };

    fn client(servers: usize, deaths: usize, connections: usize) -> Client {
        let servers = Servers::new(Network { model: MODEL, servers, deaths });
        Client::new(0, Arc::new(servers), connections)
    }

    #[test]
    fn a_read_takes_a_round_trip_and_a_write_one_more_to_the_replica() {
        // The client, half of the way, the server, its link, the other half, our link.
        assert_eq!(client(2, 0, 1).request(IoOp::Read, Slot(0), 4, 0), 10 + 50 + 10 + 4 + 50 + 4);
        // The client, our link, half of the way, the server with its link in and out; the same for
        // the replica; and back.
        let write = client(2, 0, 1).request(IoOp::Write, Slot(0), 4, 0);
        assert_eq!(write, 10 + 4 + 50 + (4 + 10 + 4) + 50 + (4 + 10) + 50 + 50);
        assert_eq!(client(1, 0, 1).request(IoOp::Write, Slot(0), 4, 0), 10 + 4 + 50 + 18 + 50);
    }

    #[test]
    fn requests_wait_for_a_connection_or_only_for_the_server() {
        let done = |connections| {
            let client = client(1, 0, connections);
            [0, 1].map(|slot| client.request(IoOp::Read, Slot(slot), 1, 0))
        };
        assert_eq!(done(1), [122, 122 + 112]);
        assert_eq!(done(2), [122, 132]);
    }

    #[test]
    fn a_dead_servers_part_is_with_the_next_one_after_a_while() {
        let client = client(2, 1, 1);
        let on_first = (0..).step_by(256).map(Slot).find(|&slot| client.home(slot) == 0).unwrap();
        let on_second = (0..).step_by(256).map(Slot).find(|&slot| client.home(slot) == 1).unwrap();
        client.servers.die_at(1000);
        assert_eq!(client.request(IoOp::Read, on_first, 1, 0), 122);
        assert_eq!(client.request(IoOp::Read, on_second, 1, 1000), 1122);
        // Death, failover, the new server, its link, the way back, our link.
        assert_eq!(client.request(IoOp::Read, on_first, 1, 1200), 1000 + 5000 + 10 + 1 + 50 + 1);
        assert_eq!(client.servers.busy_ns(), [10, 20]);
        // Its replica is dead, and is not waited for.
        let write = client.request(IoOp::Write, on_second, 1, 10_000);
        assert_eq!(write, 10_000 + 10 + 1 + 50 + (1 + 10 + 1) + 50);
    }
}
