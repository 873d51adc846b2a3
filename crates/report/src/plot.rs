//! Plots as SVG text, to be embedded in a page.
//!
//! Owns: the kinds of plots.
//! Invariants: every bar and point shows its spread, and linear axes start at zero.
//! Not here: which figures are plotted.

use SeriesLabelPosition::{LowerRight, UpperRight};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde::Serialize;

const SIZE: (u32, u32) = (900, 320);
/// Most characters of a category's name.
const LABEL_CHARS: usize = 13;
/// Distinguishable also with red-green colour blindness.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x33, 0x33, 0x33),
];

/// Several runs of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Summarises at least one value.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { median: (low + high) / 2.0, min: values[0], max: values[values.len() - 1] }
    }

    /// Returns true if the two ranges do not overlap.
    pub fn is_apart_from(&self, other: &Self) -> bool {
        self.min > other.max || self.max < other.min
    }
}

/// A name in the legend, and a value for each category.
pub struct Series {
    /// The name.
    pub name: String,
    /// The values.
    pub values: Vec<Spread>,
}

type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Plots a group of bars for each category.
pub fn bars(y_label: &str, categories: &[String], series: &[Series]) -> String {
    svg(SIZE, |area| {
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
        legend(&mut chart, series.len(), UpperRight)
    })
}

/// Plots a line over the categories for each series.
pub fn lines(y_label: &str, categories: &[String], series: &[Series]) -> String {
    svg(SIZE, |area| {
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
        legend(&mut chart, series.len(), UpperRight)
    })
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// Values above 0.
    Logarithmic,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        if self == Self::Linear { value } else { value.log10() }
    }

    fn label(self, place: f64) -> String {
        let value = if self == Self::Linear { place } else { 10f64.powf(place) };
        // As many digits as neighbours need; no `1.0000000001`.
        format!("{}", (value * 1e4).round() / 1e4)
    }

    /// Returns the ends of an axis that contains all these places, and its number of labels.
    fn range(self, places: impl Iterator<Item = f64> + Clone) -> (f64, f64, usize) {
        let (low, high) =
            (places.clone().fold(f64::MAX, f64::min), places.fold(f64::MIN, f64::max));
        match self {
            _ if low > high => (0.0, 1.0, 2),
            Self::Linear => (0.0, high.max(1e-9) * 1.05, 6),
            Self::Logarithmic => {
                let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
                (low, high, (high - low) as usize + 1)
            }
        }
    }
}

/// Size and axes of a plot of curves.
pub struct Axes {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// The unit to the right, and its scale.
    pub x: (&'static str, Scale),
    /// The unit upward, and its scale.
    pub y: (&'static str, Scale),
}

/// A name in the legend, and points from left to right.
pub struct Curve {
    /// The name.
    pub name: &'static str,
    /// The points.
    pub points: Vec<(f64, f64)>,
}

/// Plots curves over numbers.
pub fn curves(axes: &Axes, curves: &[Curve]) -> String {
    let Axes { size, x: (x_name, x), y: (y_name, y) } = *axes;
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let (left, right, x_labels) = x.range(all().map(|point| x.place(point.0)));
    let (bottom, top, y_labels) = y.range(all().map(|point| y.place(point.1)));
    svg(size, |area| {
        let mut builder = ChartBuilder::on(&area);
        builder.margin(8).margin_right(24).x_label_area_size(40).y_label_area_size(64);
        let mut chart = builder.build_cartesian_2d(left..right, bottom..top)?;
        let mut mesh = chart.configure_mesh();
        let (x_text, y_text) = (|at: &f64| x.label(*at), |at: &f64| y.label(*at));
        mesh.light_line_style(WHITE).x_labels(x_labels).x_label_formatter(&x_text);
        mesh.y_labels(y_labels).y_label_formatter(&y_text).x_desc(x_name).y_desc(y_name).draw()?;
        for (n, curve) in curves.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let points = curve.points.iter().map(|point| (x.place(point.0), y.place(point.1)));
            let line = PathElement::new(points.collect::<Vec<_>>(), colour.stroke_width(2));
            let line = chart.draw_series(std::iter::once(line))?;
            line.label(curve.name).legend(move |at| key(at, colour));
        }
        // Curves that fall are high on the left, others run along the top.
        let falls = y == Scale::Logarithmic;
        let place = if falls { UpperRight } else { LowerRight };
        legend(&mut chart, curves.len(), place)
    })
}

/// Returns lines from the smallest to the largest run of each value.
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

fn svg(size: (u32, u32), draw: impl FnOnce(DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> String {
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, size).into_drawing_area())
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
    // The space right of the last category is for the legend.
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

/// Returns the category at a whole number; marks between them have no name.
fn category_at(at: f64, categories: &[String]) -> String {
    let whole = (at - at.round()).abs() < 1e-6 && at >= -0.25;
    let found = whole.then(|| categories.get(at.round() as usize)).flatten();
    found.map(|name| shortened(name)).unwrap_or_default()
}

/// Shortens a name, as names stand side by side; tables have them in full.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(LABEL_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn legend<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    names: usize,
    place: SeriesLabelPosition,
) -> Drawn {
    if names < 2 {
        return Ok(());
    }
    let mut labels = chart.configure_series_labels();
    labels.position(place).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_median_in_the_middle() {
        let spread = Spread::of([3.0, 1.0, 10.0].into_iter());
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 10.0 });
        assert_eq!(Spread::of([4.0, 1.0].into_iter()).median, 2.5);
        let above = Spread { median: 12.0, min: 11.0, max: 13.0 };
        assert!(spread.is_apart_from(&above) && above.is_apart_from(&spread));
        assert!(!spread.is_apart_from(&spread));
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("cluster_locks"), "cluster_locks");
        assert_eq!(shortened("swap_cache_trunk"), "swap_cache_tr…");
    }

    #[test]
    fn curves_have_their_names_and_the_ends_of_their_axes() {
        let axes = Axes { size: SIZE, x: ("µs", Scale::Logarithmic), y: ("pages", Scale::Linear) };
        let points = vec![(0.02, 1.0), (300.0, 2.0)];
        let one = |name| Curve { name, points: points.clone() };
        let svg = curves(&axes, &[one("kernel"), one("run")]);
        for word in ["kernel", "run", "µs", "pages", "\n0.01\n", "\n1000\n"] {
            assert!(svg.contains(word), "{word} in {svg}");
        }
        assert!(curves(&axes, &[]).starts_with("<svg"), "nothing is no failure");
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
