//! `overspill top`, on a terminal.

use crate::installation::{Installation, can_run};
use crate::runs::Running;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Long enough for anything that does not hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal with `overspill top` on it.
struct Terminal {
    top: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(installation: &Installation, (rows, columns): (u16, u16)) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = || File::options().read(true).write(true).open(&name).unwrap();
        let mut command = installation.overspill();
        command.args(["top", "--delay", "0.2"]).env("TERM", "xterm-256color").process_group(0);
        command.stdin(theirs()).stdout(theirs()).stderr(Stdio::null());
        let top = command.spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut from, shown) = (File::from(ours.try_clone().unwrap()), screen.clone());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut piece) {
                shown.lock().unwrap().process(&piece[..len]);
            }
        });
        Self { top, keys: ours.into(), screen }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Waits until the screen is as it should be.
    fn wait_for(&self, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.screen.lock().unwrap().screen().contents();
            if is_so(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "{shown}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has it ask whether to end a run. Runs of other tests come and go in the list meanwhile.
    fn ask_to_end(&mut self, question: &str) {
        const F9: &[u8] = b"\x1b[20~";
        const DOWN: &[u8] = b"\x1b[B";
        const HOME: &[u8] = b"\x1b[H";
        for step in [DOWN, DOWN, DOWN, HOME].into_iter().cycle() {
            self.press(F9);
            if self.wait_for(|shown| shown.contains("end run ")).contains(question) {
                return;
            }
            self.press(b"n");
            self.wait_for(|shown| !shown.contains("end run "));
            self.press(step);
        }
    }

    fn wait_for_end(mut self) -> bool {
        self.press(b"q");
        self.top.wait().unwrap().success()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

#[test]
fn top_shows_what_fits_and_ends_a_run_if_told_twice() {
    let Some(installation) = can_run().then(Installation::new) else { return };
    let mut run = Running::start(&installation);
    let number = run.number();
    let narrow = Terminal::start(&installation, (24, 40));
    let shown = narrow.wait_for(|shown| shown.contains(&number));
    assert!(
        shown.contains("USED") && shown.contains("WAITS") && !shown.contains("IN/s"),
        "{shown}"
    );
    assert!(narrow.wait_for_end());
    let mut wide = Terminal::start(&installation, (24, 80));
    let shown = wide.wait_for(|shown| shown.contains("sleep 600"));
    assert!(shown.contains("SWAP WAITS") && shown.contains("TIME"), "{shown}");
    let asked = format!("end run {number} (sleep)?");
    for (answer, is_asked) in [(&b"n"[..], false), (b"y", true)] {
        wide.ask_to_end(&asked);
        wide.press(answer);
        wide.wait_for(|shown| !shown.contains(&asked));
        assert_eq!(run.has_ended(is_asked), is_asked);
    }
    // Help is closed by any key, and nothing else is.
    wide.press(b"?");
    wide.wait_for(|shown| shown.contains("lower the limit"));
    wide.press(b"q");
    wide.wait_for(|shown| !shown.contains("lower the limit"));
    assert!(wide.wait_for_end());
}
