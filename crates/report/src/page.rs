//! The frame of a page: its heading, its style, and nothing from elsewhere.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::fmt::Display;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;\
padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}\
th,td{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}h2{margin-top:2.5em}.note{color:#666}\
.better{background:#cfe6f5}.worse{background:#fbe3c0}\
summary{cursor:pointer;padding:.3em 0}.pair{display:flex;flex-wrap:wrap}";

/// Makes a page of `body`, under a heading with the machine and the conditions.
pub fn page(title: &str, environment: &dyn Display, conditions: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "Overspill: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p.note { (environment) br; (conditions) }
                (body)
            }
        }
    };
    page.into_string()
}
