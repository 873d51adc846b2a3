//! What a comparison creates on the machine, and how it is removed.
//!
//! Owns: a shell script of all undo steps, latest first, written to disk before or right after each
//! action. So one script serves success, an error, a panic, and the user whose comparison was
//! killed.
//! Invariants: the directory exists as long as something may be left, and only one process can
//! create it, so comparisons with the kernel never overlap.
//! Not here: what is created.

use super::child;
use crate::error::BenchError;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Only root can write there, and only root creates what has to be undone. A reboot empties it, and
/// removes what was created.
const DIRECTORY: &str = "/run/overspill-compare";

/// Swapped pages have to be read back; if it takes longer, the kernel hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The undo steps.
#[derive(Clone)]
pub(crate) struct Undo(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    /// Each with a number, the latest last.
    lines: Mutex<Vec<(u64, String)>>,
}

impl Undo {
    /// Takes the place of the one comparison that may run at a time.
    ///
    /// # Errors
    /// [`BenchError::Left`] if another one runs, or was killed.
    pub(crate) fn begin() -> Result<Self, BenchError> {
        let undo = Self::begin_in(Path::new(DIRECTORY))?;
        let (script, before) = (script(&undo.0.directory), std::panic::take_hook());
        // A release build aborts on panic, so nothing is dropped.
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            let _ = Command::new("sh").arg(&script).status();
        }));
        Ok(undo)
    }

    fn begin_in(directory: &Path) -> Result<Self, BenchError> {
        DirBuilder::new().mode(0o700).create(directory).map_err(|error| left(directory, &error))?;
        let directory = directory.to_owned();
        let undo = Self(Arc::new(Inner { directory, lines: Mutex::default() }));
        undo.write();
        Ok(undo)
    }

    /// Returns a directory for what is created, such as a mount point.
    pub(crate) fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Adds `line`, which a shell runs when the step is dropped.
    pub(crate) fn push(&self, line: String) -> Step {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let number = lines.last().map_or(0, |(last, _)| last + 1);
        lines.push((number, line));
        drop(lines);
        self.write();
        Step { undo: self.clone(), number }
    }

    /// Writes the script atomically.
    fn write(&self) {
        let lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::from("# Removes what `overspill-lab compare` has made.\n");
        lines.iter().rev().for_each(|(_, line)| text += &format!("{line}\n"));
        text += &format!("rm -r {}\n", self.0.directory.display());
        let new = self.0.directory.join("new");
        let written =
            fs::write(&new, text).and_then(|()| fs::rename(new, script(self.directory())));
        debug_assert!(written.is_ok(), "the directory is ours: {written:?}");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Something created. Dropping it removes it.
pub(crate) struct Step {
    undo: Undo,
    number: u64,
}

impl Drop for Step {
    fn drop(&mut self) {
        let lock = || self.undo.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lock().iter().find(|(number, _)| *number == self.number).cloned();
        let Some((_, line)) = line else { return };
        if let Err(error) = child::run(Command::new("sh").args(["-c", &line]), PATIENCE, None) {
            let script = script(self.undo.directory());
            eprintln!("overspill: {error}; what is left is removed by `sh {}`", script.display());
        }
        lock().retain(|(number, _)| *number != self.number);
        self.undo.write();
    }
}

fn script(directory: &Path) -> PathBuf {
    directory.join("undo.sh")
}

fn left(directory: &Path, error: &std::io::Error) -> BenchError {
    let place = directory.display();
    if error.kind() != std::io::ErrorKind::AlreadyExists {
        return BenchError::Left(format!("cannot make {place}: {error}; run this as root"));
    }
    let script = script(directory);
    BenchError::Left(format!(
        "{place} is there: another comparison runs, or one was killed; then remove what it left with \
         `sh {}`",
        script.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("overspill-undo-{name}-{}", std::process::id()))
    }

    #[test]
    fn steps_are_undone_when_they_are_dropped() {
        let directory = directory("drop");
        let undo = Undo::begin_in(&directory).unwrap();
        let (one, two) = (directory.join("one"), directory.join("two"));
        let touch = |path: &Path| {
            fs::write(path, "").unwrap();
            undo.push(format!("rm {}", path.display()))
        };
        let (first, second) = (touch(&one), touch(&two));
        drop(first);
        assert!(!one.exists() && two.exists());
        drop(second);
        assert!(!two.exists());
        drop(undo);
        assert!(!directory.exists());
    }

    #[test]
    fn what_a_killed_comparison_left_is_named_and_can_be_removed() {
        let directory = directory("killed");
        let undo = Undo::begin_in(&directory).unwrap();
        let made = directory.with_extension("made");
        for line in [
            format!("test ! -e {0} && echo order", made.display()),
            format!("rm {}", made.display()),
        ] {
            std::mem::forget(undo.push(line));
        }
        fs::write(&made, "").unwrap();
        let refusal = Undo::begin_in(&directory).err().unwrap().to_string();
        let script = script(&directory);
        assert!(refusal.ends_with(&format!("`sh {}`", script.display())), "{refusal}");
        let output = Command::new("sh").arg(script).output().unwrap();
        assert_eq!(output.stdout, b"order\n", "the latest is undone first");
        assert!(!made.exists() && !directory.exists());
        std::mem::forget(undo);
    }
}
