//! The pages about runs, in a browser: Chromium, by WebDriver.

use crate::installation::{Installation, can_run};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for anything that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// What an element is called in WebDriver's answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// `None`, with the reason, where there is none.
    fn start() -> Option<Self> {
        let mut driver = Command::new("chromedriver");
        driver.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let Ok(mut driver) = driver.spawn() else {
            println!("skipped: there is no chromedriver (apt-get install chromium-driver)");
            return None;
        };
        let said = BufReader::new(driver.stdout.take().unwrap()).lines().map(Result::unwrap);
        let port = said.filter_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.into_iter().next().expect("it says which");
        let profile = tempfile::tempdir().unwrap();
        let directory = format!("--user-data-dir={}", profile.path().display());
        // Tests run as root, and in machines that nothing can be reached from.
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &directory,
        ];
        let wanted = json!({
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.ask("POST", "", &wanted);
        browser.session = format!("/{}", session["sessionId"].as_str().expect("a session"));
        Some(browser)
    }

    /// Asks the driver; returns the value of its answer.
    fn ask(&self, method: &str, path: &str, what: &Value) -> Value {
        let (session, body) = (&self.session, what.to_string());
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{method} /session{session}{path} HTTP/1.1\r\nHost: localhost\r\n");
        let head = format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        let mut answer = BufReader::new(socket);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).unwrap();
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        answer["value"].clone()
    }

    fn element(&self, selector: &str) -> String {
        let how = json!({ "using": "css selector", "value": selector });
        let found = self.ask("POST", "/element", &how);
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("no {selector}: {found}")).to_owned()
    }

    fn text(&self, selector: &str) -> String {
        let element = self.element(selector);
        let text = self.ask("GET", &format!("/element/{element}/text"), &json!({}));
        // One that was replaced meanwhile has none.
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an element's text is as it should be.
    fn wait_for(&self, selector: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text(selector);
            if is_so(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{selector}: {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ask("DELETE", "", &json!({}));
        }
        // With what it has started: it has a process group of its own.
        let group = rustix::process::Pid::from_child(&self.driver);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.driver.wait();
    }
}

/// A shell that fills memory, is paged, and goes on.
const PROGRAM: &str = "data=$(yes | head -c 60000000); sleep 1000";

#[test]
fn a_browser_shows_a_run_as_it_goes_on_and_says_when_it_has_ended() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    let Some(browser) = Browser::start() else { return };
    let options = ["--metrics", "127.0.0.1:0", "--memory", "16M", "--swap", "ram:256M"];
    let mut command = installation.overspill();
    command.arg("run").args(options).args(["--", "bash", "-c", PROGRAM]);
    let mut run = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = said.find(|line| line.contains("serving http://")).unwrap();
    let address = line.split(' ').find(|word| word.starts_with("http://")).unwrap();

    browser.ask("POST", "/url", &json!({ "url": address }));
    browser.wait_for("main", |text| text.contains("bash"));
    let link = browser.element("main a");
    browser.ask("POST", &format!("/element/{link}/click"), &json!({}));
    browser.wait_for("h1", |text| text == format!("Run {}: bash", run.id()));
    // It renews itself: the memory is filled, and the plots have a second sample.
    browser.wait_for("main", |text| {
        text.contains("MiB out")
            && text.contains("Where its memory is")
            && text.contains("Memory (")
    });
    browser.element("main img[src^='data:image/png']");
    browser.element("main svg");

    // SAFETY: the run is this test's own.
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&run),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    run.wait().unwrap();
    // Its server ends with it; what was seen last stays.
    browser.wait_for("#gone", |text| text == "Nobody answers any more.");
    assert!(browser.text("main").contains("MiB out"));

    // Nothing of it was forbidden, or failed, but asking a server that has ended.
    let log = browser.ask("POST", "/se/log", &json!({ "type": "browser" }));
    let unexpected = log.as_array().unwrap().iter().find(|entry| {
        let words = entry["message"].as_str().unwrap();
        entry["level"] == "SEVERE" && !words.contains("ERR_CONNECTION")
    });
    assert!(unexpected.is_none(), "{log}");
}
