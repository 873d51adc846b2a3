//! Words of others, fit for a terminal.
//!
//! Owns: which characters are not printed as they are: those that move the cursor, change colours,
//! answer as if typed, or turn the order of what is beside them (UTR #36, 2.10). They become `\u`
//! and four digits, as in JSON.

use std::borrow::Cow;
use std::fmt::Write;

/// The words without what a terminal would obey.
pub fn plain(words: &str) -> Cow<'_, str> {
    if !words.contains(is_obeyed) {
        return Cow::Borrowed(words);
    }
    let mut shown = String::with_capacity(words.len());
    for c in words.chars() {
        match is_obeyed(c) {
            // A String takes what is written.
            true => write!(shown, "\\u{:04x}", c as u32).unwrap_or_default(),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert!(matches!(plain("Größe 1 \u{1f600}: `a b`"), Cow::Borrowed(_)));
        assert_eq!(plain("a\u{1b}[2Jb\r\n\u{9b}c\u{7f}"), r"a\u001b[2Jb\u000d\u000a\u009bc\u007f");
        assert_eq!(plain("file\u{202e}txt.exe"), r"file\u202etxt.exe");
    }
}
