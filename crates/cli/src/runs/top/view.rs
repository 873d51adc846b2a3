//! How `overspill top` looks.

use super::columns::{count, fitting};
use super::state::{Pressure, Rates, State, Watched};
use crate::run::program::name_of;
use crate::runs::seen::{Seen, SeenDevice};
use overspill::Bytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Bar, BarChart, BarGroup, Block, Clear, Gauge, Paragraph, Row, Sparkline, Table, TableState,
};

const KEYS: [(&str, &str); 7] = [
    ("F1", "Help"),
    ("F7", "Limit -"),
    ("F8", "Limit +"),
    ("F9", "End"),
    ("W", "by waits"),
    ("M", "by memory"),
    ("F10", "Quit"),
];

const HELP: &str = "\
Up, Down          select a run
W  P  M  T  N     sort by waits, faults a second, memory, time, number
F7, [             lower the limit of the selected run by a ninth
F8, ]             raise it by an eighth
F9, k             end its program, or let go of what it is attached to
F10, q, Esc       quit

WAITS             part of the last 10 s in which a thread waited
IN/s, OUT/s       pages read from swap and written to it
AHEAD             of the pages read ahead, those that were used
some              part of the last 10 s in which a thread waited for a
full              page, and in which none could run meanwhile
A bar of the histogram is the faults since the last look that took
no longer than its time, and longer than half of it.";

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let rows = state.runs().len().max(1) as u16 + 1;
    let [title, runs, detail, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rows.min(frame.area().height / 3)),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title_of(state), title);
    draw_runs(frame, runs, state);
    if let Some(watched) = state.watched() {
        draw_detail(frame, detail, watched);
    }
    frame.render_widget(keys_of(state), keys);
    if state.helps {
        draw_help(frame);
    }
}

fn title_of(state: &State) -> Line<'static> {
    let used: u64 = state.runs().iter().map(|watched| watched.seen.memory_used_bytes).sum();
    let swap: u64 = state.runs().iter().map(|watched| watched.seen.swap_used_bytes()).sum();
    let count = match state.runs().len() {
        0 => "no runs: start one by overspill run".to_owned(),
        1 => "1 run".to_owned(),
        n => format!("{n} runs"),
    };
    Line::from(vec![
        "overspill ".bold(),
        Span::raw(format!("{count}, {} in memory, {} in swap", Bytes(used), Bytes(swap))),
    ])
}

fn draw_runs(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let columns = fitting(area.width);
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let heading = columns.iter().map(|column| right(column.name)).chain([Line::from("COMMAND")]);
    let header = Row::new(heading).style(Style::new().fg(Color::Black).bg(Color::Green));
    let row = |watched: &Watched| {
        let numbers = columns.iter().map(|column| right((column.value)(watched)));
        Row::new(numbers.chain([Line::from(watched.seen.words())]))
    };
    let widths = widths.chain([Constraint::Fill(1)]);
    let table = Table::new(state.runs().iter().map(row), widths)
        .header(header)
        .row_highlight_style(Style::new().fg(Color::Black).bg(Color::Cyan));
    let mut selection = TableState::new().with_selected(state.line().unwrap_or(0));
    frame.render_stateful_widget(table, area, &mut selection);
}

fn right(number: impl Into<String>) -> Line<'static> {
    Line::from(number.into()).right_aligned()
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

fn draw_detail(frame: &mut Frame<'_>, area: Rect, watched: &Watched) {
    let devices = watched.seen.devices.len() as u16;
    let [gauges, rates, last] = Layout::vertical([
        Constraint::Length(3 + devices),
        Constraint::Length(8),
        Constraint::Fill(1),
    ])
    .areas(area);
    draw_gauges(frame, gauges, watched);
    draw_rates(frame, rates, watched);
    let [latencies, processes] =
        Layout::horizontal([Constraint::Fill(2), Constraint::Fill(1)]).areas(last);
    draw_latencies(frame, latencies, watched);
    draw_processes(frame, processes, &watched.seen);
}

fn draw_gauges(frame: &mut Frame<'_>, area: Rect, watched: &Watched) {
    let seen = &watched.seen;
    let lines = Layout::vertical(vec![Constraint::Length(1); 2 + seen.devices.len()])
        .spacing(0)
        .split(Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area });
    let Pressure { some, full } = watched.pressure();
    let words = format!("some {:.0}%, full {:.0}%", some * 100.0, full * 100.0);
    draw_gauge(frame, lines[0], "waiting for pages, 10 s", (some, words), Color::Red);
    let memory = part_of(seen.memory_used_bytes, seen.memory_bytes);
    let color = if seen.over_limit_bytes > 0 { Color::Red } else { Color::Green };
    draw_gauge(frame, lines[1], "memory", memory, color);
    for (SeenDevice { name, capacity_bytes, used_bytes, leaving, .. }, &line) in
        seen.devices.iter().zip(&lines[2..])
    {
        let color = if *leaving { Color::Red } else { Color::Yellow };
        draw_gauge(frame, line, name, part_of(*used_bytes, *capacity_bytes), color);
    }
}

/// A part for a gauge, and its words.
fn part_of(used: u64, of: u64) -> (f64, String) {
    (used as f64 / of.max(1) as f64, format!("{} of {}", Bytes(used), Bytes(of)))
}

fn draw_gauge(
    frame: &mut Frame<'_>,
    area: Rect,
    name: &str,
    (part, words): (f64, String),
    color: Color,
) {
    let [label, bar] =
        Layout::horizontal([Constraint::Length(32), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(name.to_owned()), label);
    let gauge = Gauge::default()
        .gauge_style(Style::new().fg(color).bg(Color::Black))
        .ratio(part.clamp(0.0, 1.0))
        .label(words);
    frame.render_widget(gauge, bar);
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, watched: &Watched) {
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).split(area);
    type Side = (&'static str, fn(&Rates) -> f64, Color);
    let sides: [Side; 2] = [
        ("pages in", |rates| rates.pages_in, Color::Cyan),
        ("pages out", |rates| rates.pages_out, Color::Magenta),
    ];
    for ((name, rate, color), &half) in sides.into_iter().zip(halves.iter()) {
        // The newest stands at the right.
        let width = half.width.saturating_sub(2) as usize;
        let newest = watched.rates.iter().take(width).map(|rates| rate(rates) as u64);
        let mut values: Vec<u64> = newest.collect();
        values.reverse();
        let missing = width.saturating_sub(values.len());
        values.splice(0..0, std::iter::repeat_n(0, missing));
        let most = values.iter().copied().max().unwrap_or(0);
        let title = format!(
            " {name} a second: {} (most {}) ",
            count(rate(&watched.rate())),
            count(most as f64)
        );
        let plot = Sparkline::default().data(values).style(Style::new().fg(color));
        frame.render_widget(plot.block(Block::bordered().title(title)), half);
    }
}

fn draw_latencies(frame: &mut Frame<'_>, area: Rect, watched: &Watched) {
    let used = watched.latencies.iter().position(|&(_, count)| count > 0).unwrap_or(0);
    let bar = |&(ns, faults): &(u64, u64)| {
        let label = if faults == 0 { String::new() } else { count(faults as f64) };
        Bar::default().value(faults).text_value(label).label(Line::from(time(ns)))
    };
    let bars: Vec<Bar<'_>> = watched.latencies[used..].iter().map(bar).collect();
    let chart = BarChart::default()
        .data(BarGroup::default().bars(&bars))
        .bar_width(5)
        .bar_gap(1)
        .bar_style(Style::new().fg(Color::Blue))
        .value_style(Style::new().fg(Color::White).bg(Color::Blue));
    frame.render_widget(chart.block(Block::bordered().title(" time of a fault ")), area);
}

fn draw_processes(frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
    let mut processes: Vec<_> = seen.processes.iter().collect();
    processes.sort_by_key(|state| std::cmp::Reverse(state.memory_bytes));
    let line = |process: i32, bytes: u64| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        Row::new([process.to_string(), Bytes(bytes).to_string(), name.trim().to_owned()])
    };
    let rows = processes.into_iter().map(|state| line(state.process, state.memory_bytes));
    let widths = [Constraint::Length(8), Constraint::Length(10), Constraint::Fill(1)];
    let header = Row::new(["PROCESS", "USED", "NAME"]).add_modifier(Modifier::BOLD);
    let title = format!(" processes: {} ", seen.processes.len());
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn keys_of(state: &State) -> Line<'static> {
    if let Some(run) = state.to_end() {
        let name = name_of(&run.command);
        return Line::from(format!("end run {} ({name})? y, or any other key", run.run)).bold();
    }
    if let Some(said) = &state.said {
        return Line::from(said.clone()).bold();
    }
    let spans = KEYS.iter().flat_map(|&(key, name)| {
        let pressed = Style::new().fg(Color::Black).bg(Color::Cyan);
        [Span::raw(key), Span::styled(name, pressed), Span::raw(" ")]
    });
    Line::from_iter(spans)
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let height = HELP.lines().count() as u16 + 2;
    let [area] = Layout::horizontal([Constraint::Length(72)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    let [area] = Layout::vertical([Constraint::Length(height)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" keys ")), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn a_run_is_shown_with_its_rates_its_devices_and_its_processes() {
        let (mut state, start) = (State::default(), Instant::now());
        let mut seen = Seen::of_a_test();
        state.look(vec![seen.clone()], start);
        seen.summary.pages_in += 20_000;
        (seen.stall_some_seconds, seen.stall_full_seconds) = (1.9, 0.75);
        seen.summary.fault_latency.histogram = vec![(1024, 10), (4096, 590)];
        state.look(vec![seen], start + Duration::from_secs(1));
        let text = drawn(&state, 120, 36);
        for words in [
            "1 run, 32 MiB in memory, 8 KiB in swap",
            "42 00:",
            "64 MiB     32 MiB      8 KiB   40%",
            "20k",
            "75%",
            "sort x",
            "some 40%, full 25%",
            "32 MiB of 64 MiB",
            "4 KiB of 1 MiB",
            "pages in a second: 20k",
            "4us",
            "500",
            "processes: 1",
            "F10Quit",
        ] {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        let mut state = State::default();
        for (width, height) in [(1, 1), (10, 3), (40, 12), (300, 100)] {
            drawn(&state, width, height);
            state.look(vec![Seen::of_a_test(); 50], Instant::now());
            state.helps = !state.helps;
        }
    }

    #[test]
    fn without_a_run_it_says_how_to_start_one() {
        assert!(drawn(&State::default(), 80, 24).contains("overspill run"));
    }
}
