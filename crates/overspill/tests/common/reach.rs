//! How the touches of a test binary are noticed: in the best way, or in that of
//! `OVERSPILL_TEST_REACH`; and running it once more in each other way.

use overspill::{Builder, Overspill, Reach};
use std::process::Command;

const VARIABLE: &str = "OVERSPILL_TEST_REACH";
const NAMES: [(&str, Reach); 4] = [
    ("all", Reach::All),
    ("program", Reach::Program),
    ("guards", Reach::Guards),
    ("shut", Reach::Shut),
];

/// The reach of this run; without the variable the best that is tested.
pub(crate) fn reach() -> Reach {
    let chosen = std::env::var(VARIABLE).ok();
    let named = NAMES.into_iter().find(|(name, _)| chosen.as_deref() == Some(name));
    named.map_or(Reach::All, |(_, reach)| reach)
}

/// Builds with the reach of this run; none, printing the reason, if that is not possible here.
pub(crate) fn build(builder: Builder) -> Option<Overspill> {
    match builder.reach(reach()).build() {
        Ok(overspill) => Some(overspill),
        Err(lack @ overspill::Error::Space(_)) => {
            println!("skipped: {lack}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs this test binary again in each reach but the first, without the tests of `but`.
pub(crate) fn run_in_each_other(but: &[&str]) {
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    for (name, _) in &NAMES[1..] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let skipped = but.iter().flat_map(|test| ["--skip", test]);
        let output = command.args(skipped).env(VARIABLE, name).output().unwrap();
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {}: {said}\n{errors}", output.status);
        println!("{name}: {}", said.lines().last().unwrap_or_default());
    }
}
