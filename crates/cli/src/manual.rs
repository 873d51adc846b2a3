//! The command line as shells and `man` read it, made from its definition.

use crate::args::{CompletionsArgs, ManArgs, definition};
use crate::error::Error;
use std::fs::File;
use std::io::{Write, stdout};

/// Prints a shell's completions.
///
/// # Errors
/// [`Error::Output`].
pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Error> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "overspill", &mut text);
    stdout().write_all(&text)?;
    Ok(0)
}

/// Writes a manual page for each command.
///
/// # Errors
/// [`Error::OutputFile`].
pub(crate) fn man(args: &ManArgs) -> Result<u8, Error> {
    let path = &args.directory;
    let report = |source| Error::OutputFile { path: path.clone(), source };
    clap_mangen::generate_to(definition(), path).map_err(report)?;
    for command in ["overspill", "overspill-run"] {
        let mut page = File::options()
            .append(true)
            .open(path.join(command).with_extension("1"))
            .map_err(report)?;
        page.write_all(SECTIONS.as_bytes()).map_err(report)?;
    }
    Ok(0)
}

/// What a page has besides the options.
const SECTIONS: &str = r#".SH "EXIT STATUS"
The program's own, as a shell has it: 128+n if signal n ended it.
.TP
125
Overspill failed, or memory and swap were full.
.TP
126
The program was found and cannot be executed.
.TP
127
There is no such program.
.SH SIGNALS
HUP, INT, QUIT, TERM, USR1, USR2 and others that a terminal or a supervisor sends are passed on to the program.
.SH ENVIRONMENT
.TP
OVERSPILL_MEMORY, OVERSPILL_SWAP, OVERSPILL_SWAP_SIZE, OVERSPILL_WAY, OVERSPILL_QUIET
What the options of these names say, where they say nothing.
.TP
OVERSPILL_CONFIG
A configuration file in place of those below; none if it is empty.
.TP
TMPDIR
Where a swap file is made if none is named; else /var/tmp.
.SH FILES
.TP
~/.config/overspill/config.toml, /etc/overspill.toml
Defaults of options, in a section [run].
.SH EXAMPLES
A sort in half a gigabyte, with its memory's rest in compressed memory and on a disk:
.PP
.nf
    overspill run \-\-memory 512M \-\-swap compressed:1G \-\-swap file:/var/tmp \-\- sort \-S 4G big.txt
.fi
.PP
A service that runs already, until it is let go:
.PP
.nf
    overspill attach $(pidof redis\-server) \-\-memory 2G \-\-background
    overspill detach $(pidof redis\-server)
.fi
.SH "SEE ALSO"
.BR swapon (8),
.BR userfaultfd (2),
.BR prlimit (1),
.BR systemd\-run (1)
"#;
