//! The frame of a page: its heading, its style, and nothing from elsewhere.
//!
//! Owns: how a page about what goes on keeps itself up to date ([`live_page`]).

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
    let body = html! {
        h1 { (title) }
        p.note { (environment) br; (conditions) }
        (body)
    };
    framed(title, &html! {}, &body)
}

/// Takes the page again and again, and puts what is in it in the place of what was. Where it is
/// gone, or its server, that is said, and what was seen last stays.
const RENEW: &str = "const renew = async () => {
  const answer = await fetch(location.href, { cache: 'no-store' }).catch(() => null);
  const gone = document.getElementById('gone');
  gone.hidden = answer !== null && answer.ok;
  gone.textContent = answer === null ? 'Nobody answers any more.' : 'This run has ended.';
  if (!gone.hidden) return;
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  document.querySelector('main').replaceWith(document.adoptNode(page.querySelector('main')));
};
const again = () => setTimeout(() => renew().finally(again), 2000);
again();";

/// What a page about runs may load by itself: nothing but itself and pictures that it has.
const POLICY: &str = "connect-src 'self'; img-src data:; font-src 'none'; media-src 'none'; \
object-src 'none'; frame-src 'none'; base-uri 'none'; form-action 'none'";

/// Makes a page that renews itself every two seconds.
pub(crate) fn live_page(title: &str, body: &Markup) -> String {
    let head = html! { meta http-equiv="Content-Security-Policy" content=(POLICY);
        // Else browsers ask the server for one.
        link rel="icon" href="data:,";
    };
    let body = html! {
        h1 { (title) }
        p #gone hidden {}
        main { (body) }
        script { (PreEscaped(RENEW)) }
    };
    framed(title, &head, &body)
}

fn framed(title: &str, head: &Markup, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                (head)
                meta name="viewport" content="width=device-width";
                title { "Overspill: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string()
}
