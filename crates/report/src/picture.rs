//! A picture inside a page, a pixel for each cell.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A colour: red, green, blue.
pub(crate) type Colour = [u8; 3];

pub(crate) const WHITE: Colour = [255; 3];
/// As the plots' colours: distinguishable also with red-green colour blindness.
pub(crate) const ORANGE: Colour = [0xe6, 0x9f, 0x00];
pub(crate) const BLUE: Colour = [0x00, 0x72, 0xb2];

/// White with a part of each of these, all parts together at most 1.
pub(crate) fn mix(parts: &[(Colour, f64)]) -> Colour {
    std::array::from_fn(|n| {
        let white = f64::from(WHITE[n]);
        let change = parts.iter().map(|(colour, part)| (f64::from(colour[n]) - white) * part);
        (white + change.sum::<f64>()).clamp(0.0, 255.0) as u8
    })
}

/// Rows of pixels, from the top; the last one is filled up with white.
pub(crate) struct Picture {
    columns: usize,
    pixels: Vec<Colour>,
}

impl Picture {
    /// `columns` is not 0.
    pub(crate) fn new(columns: usize, mut pixels: Vec<Colour>) -> Self {
        pixels.resize(pixels.len().div_ceil(columns).max(1) * columns, WHITE);
        Self { columns, pixels }
    }

    pub(crate) fn rows(&self) -> usize {
        self.pixels.len() / self.columns
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// A PNG that the page itself has.
    pub(crate) fn data_url(&self) -> String {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.columns as u32, self.rows() as u32);
        encoder.set_color(png::ColorType::Rgb);
        let written = encoder.write_header().and_then(|mut writer| {
            writer.write_image_data(self.pixels.as_flattened())?;
            writer.finish()
        });
        written.expect("memory takes what is written");
        format!("data:image/png;base64,{}", STANDARD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_is_filled_up() {
        let picture = Picture::new(3, vec![BLUE; 4]);
        assert_eq!((picture.columns(), picture.rows()), (3, 2));
        assert_eq!(picture.pixels[5], WHITE);
        assert!(picture.data_url().starts_with("data:image/png;base64,iVBORw0KGgo"));
        assert_eq!(Picture::new(3, Vec::new()).rows(), 1);
    }

    #[test]
    fn colours_are_mixed_with_white() {
        assert_eq!([mix(&[]), mix(&[(BLUE, 1.0)])], [WHITE, BLUE]);
        assert_eq!(mix(&[(ORANGE, 0.5), (ORANGE, 0.5)]), ORANGE);
    }
}
