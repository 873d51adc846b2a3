//! Plots as SVG text, to stand inside a page.
//!
//! Owns: the two kinds of plots. Invariants: every bar and point shows its spread, axes start at zero.
//! Not here: which figures are plotted.

use crate::sample::Spread;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 320);
/// Of a category's name.
const LABEL_CHARS: usize = 13;
/// Told apart also by those who see no red or no green.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x33, 0x33, 0x33),
];

/// A name in the legend, and a value for each category.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) values: Vec<Spread>,
}

type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A group of bars for each category.
pub(super) fn bars(y_label: &str, categories: &[String], series: &[Series]) -> String {
    svg(|area| {
        let mut chart = chart(&area, y_label, categories, series)?;
        let width = 0.8 / series.len() as f64;
        for (n, one) in series.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let left = |category: usize| category as f64 - 0.4 + n as f64 * width;
            let bar = |(category, value): (usize, &Spread)| {
                let right = left(category) + width * 0.95;
                Rectangle::new([(left(category), 0.0), (right, value.median)], colour.filled())
            };
            let bars = chart.draw_series(one.values.iter().enumerate().map(bar))?;
            bars.label(&one.name).legend(move |at| key(at, colour));
            let middle = |category| left(category) + width * 0.475;
            chart.draw_series(whiskers(&one.values, middle))?;
        }
        legend(&mut chart, series)
    })
}

/// A line over the categories for each series.
pub(super) fn lines(y_label: &str, categories: &[String], series: &[Series]) -> String {
    svg(|area| {
        let mut chart = chart(&area, y_label, categories, series)?;
        for (n, one) in series.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let points = one.values.iter().enumerate().map(|(x, value)| (x as f64, value.median));
            let line = PathElement::new(points.clone().collect::<Vec<_>>(), colour.stroke_width(2));
            let line = chart.draw_series(std::iter::once(line))?;
            line.label(&one.name).legend(move |at| key(at, colour));
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
            chart.draw_series(whiskers(&one.values, |category| category as f64))?;
        }
        legend(&mut chart, series)
    })
}

/// From the smallest to the largest run of each.
fn whiskers(
    values: &[Spread],
    x: impl Fn(usize) -> f64,
) -> impl Iterator<Item = PathElement<(f64, f64)>> {
    values
        .iter()
        .enumerate()
        .map(move |(n, value)| PathElement::new(vec![(x(n), value.min), (x(n), value.max)], BLACK))
}

fn key((x, y): (i32, i32), colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled())
}

fn svg(draw: impl FnOnce(DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> String {
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, SIZE).into_drawing_area())
        .expect("drawing into a string does not fail");
    text
}

fn chart<'a, 'b>(
    area: &'a DrawingArea<SVGBackend<'b>, Shift>,
    y_label: &str,
    categories: &[String],
    series: &[Series],
) -> Drawn<Chart<'a, 'b>> {
    let all = || series.iter().flat_map(|one| &one.values);
    let top = all().map(|value| value.max).fold(0.0, f64::max).max(1e-9) * 1.1;
    let bottom = all().map(|value| value.min).fold(0.0, f64::min) * 1.1;
    let count = categories.len();
    // To the right of the last category is room for the legend.
    let right = count as f64 - 0.5 + if series.len() > 1 { 0.16 * count as f64 } else { 0.0 };
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).x_label_area_size(28).y_label_area_size(72);
    let mut chart = builder.build_cartesian_2d(-0.5..right, bottom..top)?;
    let name = |at: &f64| category_at(*at, categories);
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(WHITE).x_labels(2 * count).x_label_formatter(&name);
    mesh.y_desc(y_label).y_labels(6).draw()?;
    Ok(chart)
}

/// Categories stand at whole numbers; marks between them have no name.
fn category_at(at: f64, categories: &[String]) -> String {
    let whole = (at - at.round()).abs() < 1e-6 && at >= -0.25;
    let found = whole.then(|| categories.get(at.round() as usize)).flatten();
    found.map(|name| shortened(name)).unwrap_or_default()
}

/// Names stand side by side; tables have them in full.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(LABEL_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>, series: &[Series]) -> Drawn {
    if series.len() < 2 {
        return Ok(());
    }
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("cluster_locks"), "cluster_locks");
        assert_eq!(shortened("swap_cache_trunk"), "swap_cache_tr…");
    }

    #[test]
    fn categories_and_series_are_named() {
        let value = |median| Spread { median, min: median - 0.5, max: median + 0.5 };
        let categories = ["first", "second"].map(str::to_owned);
        let one = |name: &str| Series { name: name.into(), values: vec![value(1.0), value(2.0)] };
        let series = ["before", "after"].map(one);
        for svg in [bars("accesses/s", &categories, &series), lines("Mops/s", &categories, &series)]
        {
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for word in ["first", "second", "before", "after"] {
                assert!(svg.contains(word), "{word} in {svg}");
            }
        }
    }
}
