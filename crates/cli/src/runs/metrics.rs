//! `overspill metrics`: all runs of this user, for Prometheus.
//!
//! Owns: the names of the metrics, in Prometheus's conventions, and how they are handed over: by
//! HTTP, with pages for browsers, as a file for node_exporter's textfile collector, or printed.
//! Invariants: one exporter has all runs, told apart by the labels `run` and `program`, so a run
//! needs no port of its own. A file is replaced as a whole.
//! Not here: the programs' arguments, which may be secret.

use super::http::{Page, Server};
use super::of_process;
use super::seen::{Seen, SeenDevice};
use super::web::{self, Past};
use crate::args::MetricsArgs;
use crate::error::Error;
use crate::run::program::name_of;
use crate::say;
use overspill_run::Run;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder, TEXT_FORMAT, TextEncoder};
use std::io::{self, BufRead, BufReader, Read, Write, stdin, stdout};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio, exit};

/// Prints metrics, writes them to a file, or serves them until this is ended.
///
/// # Errors
/// [`Error::Output`], [`Error::Listen`], [`Error::OutputFile`].
pub(crate) fn metrics(args: &MetricsArgs) -> Result<u8, Error> {
    match (&args.listen, &args.textfile) {
        (Some(address), _) => match (Exporter::bind(address), args.of) {
            (bound, None) => {
                let exporter = bound?;
                say::line(serving(&exporter.address()));
                exporter.serve(|| Ok(Seen::all_with_runs()));
            }
            (Ok(exporter), Some(run)) => exporter.serve_run(run)?,
            // The run says it.
            (Err(error), Some(_)) => writeln!(stdout(), "{error}")?,
        },
        (None, Some(path)) => replace(path, &text_of(&Seen::all()))?,
        (None, None) => stdout().write_all(&text_of(&Seen::all()))?,
    }
    Ok(0)
}

/// A process that serves the metrics of one run as long as this exists. Apart from the run, because
/// whoever can connect to it may use up what a process has, or worse.
pub(crate) struct RunExporter {
    address: String,
    process: u32,
    /// Closed with this, by which the process knows.
    _end: ChildStdin,
}

impl RunExporter {
    /// Starts it for the run of this process, and waits until it has taken the address.
    ///
    /// # Errors
    /// [`Error::Refused`] in its words; [`Error::System`], [`Error::NoMetrics`].
    pub(crate) fn start(address: &str) -> Result<Self, Error> {
        let failed = || Error::system("start the process of --metrics");
        let this = std::env::current_exe().map_err(failed())?;
        let mut command = Command::new(this);
        command.args(["metrics", "--listen", address, "--of", &std::process::id().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        // Whoever waits for the program reaps it.
        let mut child = command.spawn().map_err(failed())?;
        let (end, said) = child.stdin.take().zip(child.stdout.take()).expect("both are pipes");
        let mut address = String::new();
        BufReader::new(said).read_line(&mut address).map_err(failed())?;
        match address.trim_end() {
            "" => Err(Error::NoMetrics),
            url if url.starts_with("http://") => {
                Ok(Self { address: url.to_owned(), process: child.id(), _end: end })
            }
            reason => Err(Error::Refused(reason.to_owned())),
        }
    }

    /// The number of the process.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Where its pages are.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

/// Serves metrics at an address of which nobody else makes use.
struct Exporter {
    server: Server,
    address: SocketAddr,
}

impl Exporter {
    /// Takes the address.
    ///
    /// # Errors
    /// [`Error::Listen`].
    fn bind(address: &str) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address: address.to_owned(), source };
        let server = Server::bind(address).map_err(listen)?;
        let address = server.address().map_err(listen)?;
        Ok(Self { server, address })
    }

    /// Serves one run, the starter of this process, until that closes the standard input.
    ///
    /// # Errors
    /// [`Error::Output`], [`Error::System`].
    fn serve_run(self, run: i32) -> Result<(), Error> {
        writeln!(stdout(), "{}", self.address())?;
        let until_the_end = || {
            let _ = stdin().read_to_end(&mut Vec::new());
            exit(0);
        };
        let builder = std::thread::Builder::new();
        builder.spawn(until_the_end).map_err(Error::system("start a thread"))?;
        let of_run = || of_process(run).map(|run| (run, Seen::of(run)));
        self.serve(|| {
            of_run().map(|(run, seen)| seen.map(|seen| (run, seen)).into_iter().collect())
        });
        Ok(())
    }

    /// Where the pages are.
    fn address(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn serve(&self, runs: impl Fn() -> Result<Vec<(Run, Seen)>, Error> + Sync) {
        let past = Past::default();
        std::thread::scope(|scope| {
            let watch = || {
                loop {
                    past.look(runs().unwrap_or_default());
                    std::thread::sleep(web::PERIOD);
                }
            };
            // Without a thread there are only metrics.
            let _ = std::thread::Builder::new().spawn_scoped(scope, watch);
            self.server.serve(|path| page(path, &past, &runs));
        });
    }
}

fn page(path: &str, past: &Past, runs: impl Fn() -> Result<Vec<(Run, Seen)>, Error>) -> Page {
    if path != "/metrics" {
        let none = || Page::line("404 Not Found", "runs are at /, metrics at /metrics");
        return past.page(path).unwrap_or_else(none);
    }
    match runs() {
        Ok(runs) => {
            let runs: Vec<_> = runs.into_iter().map(|(_, seen)| seen).collect();
            Page { status: "200 OK", kind: TEXT_FORMAT, body: text_of(&runs) }
        }
        Err(error) => Page::line("500 Internal Server Error", &error.to_string()),
    }
}

/// What is said of an address.
pub(crate) fn serving(address: &str) -> String {
    format!("serving {address} for browsers, {address}metrics for Prometheus")
}

/// Writes a file that readers see either as it was or whole.
fn replace(path: &Path, text: &[u8]) -> Result<(), Error> {
    // Of the file that is not there yet only the kind of error is of interest.
    let report =
        |error: io::Error| Error::OutputFile { path: path.to_owned(), source: error.kind().into() };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".overspill")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .map_err(report)?;
    file.write_all(text).map_err(report)?;
    file.persist(path).map_err(|error| report(error.error))?;
    Ok(())
}

fn text_of(runs: &[Seen]) -> Vec<u8> {
    let mut text = Vec::new();
    let families: Vec<_> =
        families_of(runs).into_iter().filter(|it| !it.get_metric().is_empty()).collect();
    TextEncoder::new().encode(&families, &mut text).expect("memory takes what is written");
    text
}

/// A family with one metric for each run.
type PerRun = (&'static str, &'static str, MetricType, fn(&Seen) -> f64);

const SECONDS_PER_NS: f64 = 1e-9;

const PER_RUN: [PerRun; 15] = [
    (
        "memory_limit_bytes",
        "Memory that all processes of a run may have: its limit",
        MetricType::GAUGE,
        |run| run.memory_bytes as f64,
    ),
    (
        "memory_used_bytes",
        "Memory that all processes of a run have of its limit",
        MetricType::GAUGE,
        |run| run.memory_used_bytes as f64,
    ),
    (
        "memory_over_limit_bytes",
        "Memory above the limit of a run that has stayed for longer than a moment: it cannot leave",
        MetricType::GAUGE,
        |run| run.over_limit_bytes as f64,
    ),
    ("processes", "Processes of a run that are alive", MetricType::GAUGE, |run| {
        run.processes.len() as f64
    }),
    ("run_seconds", "Time since the program was started", MetricType::GAUGE, |run| {
        run.wall_seconds
    }),
    (
        "stall_some_seconds_total",
        "Time in which a thread waited for a page (PSI's some)",
        MetricType::COUNTER,
        |run| run.stall_some_seconds,
    ),
    (
        "stall_full_seconds_total",
        "Time in which a thread waited for a page, and none could run (PSI's full)",
        MetricType::COUNTER,
        |run| run.stall_full_seconds,
    ),
    ("pages_in_total", "Pages read from swap", MetricType::COUNTER, |run| {
        run.summary.pages_in as f64
    }),
    ("pages_out_total", "Pages written to swap", MetricType::COUNTER, |run| {
        run.summary.pages_out as f64
    }),
    ("pages_lost_total", "Pages whose content was lost", MetricType::COUNTER, |run| {
        run.summary.pages_lost as f64
    }),
    ("major_faults_total", "Faults that had to read", MetricType::COUNTER, |run| {
        run.counter("pgmajfault") as f64
    }),
    ("refaults_total", "Pages faulted in again after eviction", MetricType::COUNTER, |run| {
        run.counter("workingset_refault") as f64
    }),
    ("readahead_pages_total", "Pages read ahead", MetricType::COUNTER, |run| {
        run.counter("swap_ra") as f64
    }),
    ("readahead_hits_total", "Pages read ahead and then touched", MetricType::COUNTER, |run| {
        run.counter("swap_ra_hit") as f64
    }),
    (
        "write_errors_total",
        "Writes that failed; their pages stayed in memory",
        MetricType::COUNTER,
        |run| run.counter("write_errors") as f64,
    ),
];

type PerDevice = (&'static str, &'static str, fn(&SeenDevice) -> u64);

const PER_DEVICE: [PerDevice; 2] = [
    ("swap_capacity_bytes", "What a device that a run swaps to can hold", |device| {
        device.capacity_bytes
    }),
    ("swap_used_bytes", "What is in use of a device that a run swaps to", |device| {
        device.used_bytes
    }),
];

fn families_of(runs: &[Seen]) -> Vec<MetricFamily> {
    let per_run = PER_RUN.iter().map(|&(name, help, kind, value)| {
        let metric = |run: &Seen| metric(labels_of(run), kind, value(run));
        family(name, help, kind, runs.iter().map(metric).collect())
    });
    let per_device = PER_DEVICE.iter().map(|&(name, help, value)| {
        let of_run = |run: &Seen| {
            let labels = labels_of(run);
            let metrics = run.devices.iter().enumerate().map(|(n, device)| {
                let number = label("device", &n.to_string());
                let labels = [&labels[..], &[number, label("name", &device.name)]].concat();
                metric(labels, MetricType::GAUGE, value(device) as f64)
            });
            metrics.collect::<Vec<_>>()
        };
        family(name, help, MetricType::GAUGE, runs.iter().flat_map(of_run).collect())
    });
    let help = "Time of faults, from the message to the answer";
    let latencies = runs.iter().map(latencies_of).collect();
    let latencies = family("fault_seconds", help, MetricType::HISTOGRAM, latencies);
    let version = label("version", env!("CARGO_PKG_VERSION"));
    let build = vec![metric(vec![version], MetricType::GAUGE, 1.0)];
    let build = family("build_info", "The version that tells this", MetricType::GAUGE, build);
    per_run.chain(per_device).chain([latencies, build]).collect()
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(format!("overspill_{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn metric(labels: Vec<LabelPair>, kind: MetricType, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels);
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn latencies_of(run: &Seen) -> Metric {
    let (mut sum, mut buckets) = (0, Vec::new());
    for &(ns, count) in &run.summary.fault_latency.histogram {
        sum += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(ns as f64 * SECONDS_PER_NS);
        bucket.set_cumulative_count(sum);
        buckets.push(bucket);
    }
    let mut histogram = Histogram::default();
    histogram.set_sample_count(sum);
    histogram.set_sample_sum(run.summary.fault_latency.sum_ns as f64 * SECONDS_PER_NS);
    histogram.set_bucket(buckets);
    let mut metric = Metric::from_label(labels_of(run));
    metric.set_histogram(histogram);
    metric
}

fn labels_of(run: &Seen) -> Vec<LabelPair> {
    vec![label("program", name_of(&run.command)), label("run", &run.run.to_string())]
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(runs: &[Seen]) -> String {
        String::from_utf8(text_of(runs)).unwrap()
    }

    #[test]
    fn names_units_and_labels_are_prometheus() {
        let mut seen = Seen::of_a_test();
        seen.command = vec!["/usr/bin/so\"rt".into(), "--password=x".into()];
        let text = text(&[seen]);
        for line in [
            "# TYPE overspill_memory_limit_bytes gauge",
            "overspill_memory_limit_bytes{program=\"so\\\"rt\",run=\"42\"} 67108864",
            "# TYPE overspill_pages_out_total counter",
            "overspill_pages_out_total{program=\"so\\\"rt\",run=\"42\"} 1234",
            "overspill_swap_used_bytes{program=\"so\\\"rt\",run=\"42\",device=\"1\",name=\"/var/tmp\"} 4096",
            "overspill_fault_seconds_bucket{program=\"so\\\"rt\",run=\"42\",le=\"+Inf\"} 100",
            "overspill_fault_seconds_count{program=\"so\\\"rt\",run=\"42\"} 100",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("password"), "{text}");
    }

    /// The dashboard shows only what there is, and the alerts are about that.
    #[test]
    fn the_dashboard_and_the_alerts_have_no_other_names() {
        let files = [
            include_str!("../../../../packaging/grafana.json"),
            include_str!("../../../../packaging/alerts.yml"),
        ];
        let names = files.iter().flat_map(|file| file.split("overspill_").skip(1));
        let names = names.map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()));
        let names: Vec<&str> = names.filter_map(|mut words| words.next()).collect();
        assert!(names.len() > 15, "{names:?}");
        let known: Vec<String> = families_of(&[Seen::of_a_test()])
            .iter()
            .map(|family| family.name().trim_start_matches("overspill_").to_owned())
            .collect();
        for name in names {
            let family = name.trim_end_matches("_bucket").trim_end_matches("_sum");
            assert!(known.iter().any(|known| known == name || known == family), "{name}");
        }
    }

    #[test]
    fn without_runs_there_is_only_who_tells() {
        let told = text(&[]);
        let mut samples = told.lines().filter(|line| !line.starts_with('#'));
        assert!(samples.next().unwrap().starts_with("overspill_build_info{version="), "{told}");
        assert_eq!(samples.next(), None);
    }

    #[test]
    fn a_file_is_replaced_whole_and_readable_by_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("overspill.prom");
        for words in ["first", "second"] {
            replace(&path, words.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), words);
        }
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        assert!(replace(Path::new("/nowhere/x"), b"").is_err());
    }
}
