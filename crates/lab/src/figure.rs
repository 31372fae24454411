//! A measured figure, compared with its bar. All benchmarks and storms use this form.

use std::fmt;

use serde::{Serialize, Serializer};

/// What a figure must reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// Reported, not judged.
    None,
}

impl Bar {
    fn holds(self, value: f64) -> bool {
        match self {
            Bar::AtMost(most) => value <= most,
            Bar::AtLeast(least) => value >= least,
            Bar::None => true,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::AtMost(most) => write!(f, "<= {most}"),
            Bar::AtLeast(least) => write!(f, ">= {least}"),
            Bar::None => Ok(()),
        }
    }
}

impl Serialize for Bar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Bar::None => serializer.serialize_none(),
            bar => serializer.collect_str(bar),
        }
    }
}

/// One figure, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub figure: String,
    pub value: f64,
    pub unit: &'static str,
    pub bar: Bar,
    pub ok: bool,
}

impl Figure {
    pub fn new(figure: impl Into<String>, value: f64, unit: &'static str, bar: Bar) -> Figure {
        let value = (value * 1000.0).round() / 1000.0;
        Figure { figure: figure.into(), value, unit, bar, ok: value.is_finite() && bar.holds(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_prints_in_the_one_form_and_knows_its_bar() {
        let good = Figure::new("append at 1M ÷ at 10", 1.04321, "ratio", Bar::AtMost(1.2));
        assert_eq!(
            serde_json::to_string(&good).unwrap(),
            r#"{"figure":"append at 1M ÷ at 10","value":1.043,"unit":"ratio","bar":"<= 1.2","ok":true}"#
        );
        assert!(!Figure::new("x", 1.3, "ratio", Bar::AtMost(1.2)).ok);
        assert!(!Figure::new("x", f64::NAN, "ratio", Bar::AtLeast(0.6)).ok);
        assert!(Figure::new("x", 7.0, "bytes", Bar::None).ok);
    }
}
