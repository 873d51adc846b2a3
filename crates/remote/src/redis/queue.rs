//! A queue to a cluster: requests, and threads that make them.
//!
//! Owns: requests that wait, those that have ended, and what the user knows.
//! Invariants: a request ends when the cluster has done it, or cannot because its memory is full,
//! or has not for as long as the user wants to wait; until then it is tried again and again, with
//! longer pauses, during which the thread sees to others: one shard that does not answer holds up
//! its own pages only.
//! Rejected: one thread with sockets that do not wait, as for block devices: the `redis` crate's
//! client for that is asynchronous, and would bring a runtime.

use super::Failure;
use super::client::{Client, Terms, Unwritten};
use super::cluster::Cluster;
use crate::failure::{News, State, longer};
use crate::spawn;
use overspill_base::Bytes;
use overspill_base::sync::{Condvar, LockClass, Mutex, MutexGuard};
use overspill_device::{Completion, DeviceError, IoOp, IoQueue, IoRequest, PageFailure, failed};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Failures for so long are not worth a line: after one server has taken another's place every
/// connection notices for itself.
const HICCUP: Duration = Duration::from_secs(1);

/// What a device and its queues have in common.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) cluster: Cluster,
    pub(super) terms: Terms,
    pub(super) connections: u8,
    /// How long the cluster is tried, if not for ever.
    pub(super) timeout: Option<Duration>,
    pub(super) slots: u32,
    /// Takes lines for the user.
    pub(super) say: fn(&str),
}

impl Target {
    pub(super) fn size(&self) -> Bytes {
        Bytes::of_pages(self.slots.into())
    }
}

/// A request that no thread has.
struct Waiting {
    request: IoRequest,
    since: Instant,
    /// Not to be tried before.
    again_at: Instant,
    /// The last one, after a failure.
    pause: Option<Duration>,
}

#[derive(Default)]
struct Requests {
    waiting: VecDeque<Waiting>,
    finished: Vec<Completion>,
    /// Requests that were tried in vain and are not finished.
    failing: usize,
    /// Nobody will take what finishes.
    is_over: bool,
}

struct Shared {
    target: Arc<Target>,
    requests: Mutex<Requests>,
    /// There is something to do.
    work: Condvar,
    /// Readable when a request has finished.
    bell: OwnedFd,
    news: Mutex<News>,
}

pub(super) struct RedisQueue {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    depth: usize,
    in_flight: usize,
}

impl RedisQueue {
    pub(super) fn new(target: Arc<Target>, depth: u32) -> Result<Self, Errno> {
        let news = News::new(&target.name, target.say);
        let shared = Arc::new(Shared {
            requests: Mutex::new(LockClass::ServedDevice, Requests::default()),
            work: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            news: Mutex::new(LockClass::ServedDevice, news),
            target,
        });
        let depth = depth.max(1) as usize;
        let mut queue = Self { shared, threads: Vec::new(), depth, in_flight: 0 };
        for _ in 0..queue.shared.target.connections {
            let shared = queue.shared.clone();
            let run = move || Worker { shared, client: None }.run();
            queue.threads.push(spawn("ovs-redis", run)?);
        }
        Ok(queue)
    }

    fn sleep(&self) {
        // After EINTR or any other error: look again.
        let _ = poll(&mut [PollFd::new(&self.shared.bell, PollFlags::IN)], None);
    }
}

impl IoQueue for RedisQueue {
    fn submit(&mut self, request: IoRequest) {
        while self.in_flight - self.shared.requests.lock().finished.len() >= self.depth {
            self.sleep();
            self.shared.silence();
        }
        let now = Instant::now();
        let waiting = Waiting { request, since: now, again_at: now, pause: None };
        self.in_flight += 1;
        self.shared.requests.lock().waiting.push_back(waiting);
        self.shared.work.notify_one();
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.shared.silence();
        let before = done.len();
        done.append(&mut self.shared.requests.lock().finished);
        self.in_flight -= done.len() - before;
    }

    fn wait(&mut self) {
        while self.in_flight > 0 && self.shared.requests.lock().finished.is_empty() {
            self.sleep();
            self.shared.silence();
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.bell.as_fd())
    }
}

impl Drop for RedisQueue {
    /// Waits for what is in flight, unless the cluster does not answer.
    fn drop(&mut self) {
        self.shared.requests.lock().is_over = true;
        self.shared.work.notify_all();
        // A panic was reported when it happened.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Waits for a request that is to be tried now; none at the end.
    fn next(&self) -> Option<Waiting> {
        let mut requests = self.requests.lock();
        loop {
            let now = Instant::now();
            let is_over = requests.is_over;
            let due = |waiting: &Waiting| is_over || waiting.again_at <= now;
            if let Some(index) = requests.waiting.iter().position(due) {
                return requests.waiting.remove(index);
            }
            if is_over {
                return None;
            }
            requests = self.sleep(requests, now);
        }
    }

    fn sleep<'a>(
        &'a self,
        requests: MutexGuard<'a, Requests>,
        now: Instant,
    ) -> MutexGuard<'a, Requests> {
        let next = requests.waiting.iter().map(|waiting| waiting.again_at).min();
        match next {
            Some(next) => self.work.wait_for(requests, next.saturating_duration_since(now)),
            None => self.work.wait(requests),
        }
    }

    /// Hands a request back. `was_failing` if it was tried in vain before.
    fn finish(&self, completion: Completion, was_failing: bool) {
        let mut requests = self.requests.lock();
        requests.failing -= usize::from(was_failing);
        let is_well = requests.failing == 0 && completion.failures.is_empty();
        requests.finished.push(completion);
        drop(requests);
        let mut news = self.news.lock();
        // What is lost stays lost.
        if is_well && *news.state() != State::Gone {
            news.turn(State::Up, "it is back");
        }
        drop(news);
        // A bell that cannot count further is rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Has a request tried again, unless it has been long enough.
    fn postpone(&self, mut waiting: Waiting, failure: Failure) {
        let was_failing = waiting.pause.is_some();
        let timeout = self.target.timeout;
        let is_late = timeout.is_some_and(|timeout| waiting.since.elapsed() >= timeout);
        if is_late {
            self.news.lock().turn(State::Silent, &format!("timeout= is over: {failure}"));
        }
        let mut requests = self.requests.lock();
        if is_late || requests.is_over {
            drop(requests);
            let error = self.error(&waiting.request, Errno::TIMEDOUT);
            return self.finish(failed(waiting.request, &error), was_failing);
        }
        let is_hiccup = waiting.since.elapsed() < HICCUP;
        let pause = longer(waiting.pause);
        waiting.again_at = Instant::now() + pause;
        waiting.pause = Some(pause);
        requests.waiting.push_back(waiting);
        requests.failing += usize::from(!was_failing);
        drop(requests);
        if !is_hiccup {
            self.heed(failure);
        }
    }

    /// Tells the user why requests wait.
    fn heed(&self, failure: Failure) {
        let mut news = self.news.lock();
        match failure {
            Failure::Refused(why) => news.refuse(why),
            failure => news.turn(State::Lost, &format!("its pages wait: {failure}")),
        }
    }

    fn error(&self, request: &IoRequest, errno: Errno) -> DeviceError {
        let (op, slot) = (request.op, request.slot);
        DeviceError::Io { name: self.target.name.clone(), op, slot, errno }
    }
}

/// A thread with a connection to every server.
struct Worker {
    shared: Arc<Shared>,
    client: Option<Client>,
}

impl Worker {
    fn run(mut self) {
        while let Some(mut waiting) = self.shared.next() {
            match self.try_once(&mut waiting.request) {
                Ok(failures) => {
                    let (request, was_failing) = (waiting.request, waiting.pause.is_some());
                    self.shared.finish(Completion { request, failures }, was_failing);
                }
                Err(Unwritten::Full) => {
                    let (name, size) = (self.shared.target.name.clone(), self.shared.target.size());
                    let completion = failed(waiting.request, &DeviceError::Full { name, size });
                    self.shared.finish(completion, waiting.pause.is_some());
                }
                Err(Unwritten::Failed(failure)) => {
                    self.client = None;
                    self.shared.postpone(waiting, failure);
                }
            }
        }
    }

    /// Makes a request; returns the pages that failed for good.
    fn try_once(&mut self, request: &mut IoRequest) -> Result<Vec<PageFailure>, Unwritten> {
        let target = &self.shared.target;
        let client = Client::kept(&mut self.client, &target.cluster)?;
        match request.op {
            IoOp::Write => {
                client.write(&target.terms, request.slot, &request.pages).map(|()| Vec::new())
            }
            IoOp::Read => {
                let (mut missing, pages) = (Vec::new(), &mut request.pages);
                client.read(&target.terms.keys, request.slot, pages, &mut missing)?;
                Ok(self.lost(request, missing))
            }
        }
    }

    fn lost(&self, request: &IoRequest, missing: Vec<usize>) -> Vec<PageFailure> {
        if !missing.is_empty() {
            let why = "it has lost pages: somebody has removed its keys, or the lease ran out \
                       while the run stood still";
            self.shared.news.lock().turn(State::Gone, why);
        }
        let error = self.shared.error(request, Errno::NODATA);
        missing.into_iter().map(|index| PageFailure { index, error: error.clone() }).collect()
    }
}
