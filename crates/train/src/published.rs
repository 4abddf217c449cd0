// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Derives DSP's thresholds from the samples that its paper prints (Table 1), and compares them with the
//! thresholds that the paper uses (Table 2).
//!
//! The paper says that its thresholds come from these samples, but not how. The rule here puts a bound into
//! the gap that the samples leave, at the gap's geometric middle (the two bounds of P/T at one third and two
//! thirds):
//! - P/T: between the highest ratio at which shadow won and the lowest at which nested won.
//! - Upper TLB bound: between the highest TLB-miss frequency at which shadow did not win and the next higher
//!   at which shadow won. Upper page-fault bound: the same for nested, without samples above the upper TLB
//!   bound, which DSP's first rule decides.
//! - Lower page-fault bound: between the highest page-fault frequency of a draw with few TLB misses and the
//!   lowest at which nested won. Lower TLB bound: between the highest TLB-miss frequency of a draw with few
//!   page faults and the lowest at which shadow won.
//!
//! All six thresholds have the published order of magnitude. The upper TLB bound is furthest off, at a third
//! of the published value: by the samples, shadow won from 3.9 on, and 10 appears only as "frequently >10",
//! in the one sample with many page faults that shadow won.

use crate::text::{self, row};
use crate::{TrainError, Trained};
use bifold_policy::{Named, Spec};

/// The published samples and thresholds.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    sample: Vec<Sample>,
    published: Thresholds,
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    page_faults_e7: Words,
    tlb_misses: Words,
    ratio_e7: Words,
    winner: Winner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Winner {
    Shadow,
    Nested,
    Draw,
}

/// DSP's thresholds, per 1000 instructions.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Page faults from which there are many.
    pub page_fault_upper: f64,
    /// Page faults below which there are few.
    pub page_fault_lower: f64,
    /// TLB misses above which there are many.
    pub tlb_miss_upper: f64,
    /// TLB misses below which there are few.
    pub tlb_miss_lower: f64,
    /// Page faults per TLB miss above which nested is better.
    pub p_to_t_upper: f64,
    /// Page faults per TLB miss below which shadow is better.
    pub p_to_t_lower: f64,
}

/// A frequency as printed: `0.5`, `<0.5`, `>150000`, `0, sometimes 100`, `0 or 10000`,
/// `frequently >10`, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
#[serde(try_from = "String")]
enum Words {
    None,
    /// This frequency, at least at times; the larger of two printed numbers.
    Reaches(f64),
    /// Less than this.
    Below(f64),
}

/// What is printed as no frequency is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no frequency like 0.5, <0.5, >150000, `0, sometimes 100` or `0 or 10000`")]
struct BadFrequency(String);

impl TryFrom<String> for Words {
    type Error = BadFrequency;

    fn try_from(text: String) -> Result<Words, BadFrequency> {
        let wrong = || BadFrequency(text.clone());
        let mut last = None;
        for word in text.split([' ', ',']).filter(|w| !w.is_empty()) {
            let number = |s: &str| s.parse::<f64>().ok().filter(|x| *x >= 0.0 && x.is_finite());
            last = match word {
                "or" | "sometimes" | "frequently" => last,
                _ => match word.strip_prefix('<') {
                    Some(x) => Some(Words::Below(number(x).ok_or_else(wrong)?)),
                    None => {
                        let x = number(word.strip_prefix('>').unwrap_or(word)).ok_or_else(wrong)?;
                        let before = if let Some(Words::Reaches(b)) = last { b } else { x };
                        Some(Words::Reaches(x.max(before)))
                    }
                },
            };
        }
        match last {
            Some(words) => Ok(words),
            None if text.trim().is_empty() => Ok(Words::None),
            None => Err(wrong()),
        }
    }
}

impl Words {
    /// The frequency that is certainly reached.
    fn reached(self) -> Option<f64> {
        if let Words::Reaches(x) = self { Some(x) } else { None }
    }

    /// The highest printed frequency.
    fn highest(self) -> Option<f64> {
        match self {
            Words::None => None,
            Words::Reaches(x) | Words::Below(x) => Some(x),
        }
    }
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.max_by(f64::total_cmp)
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.min_by(f64::total_cmp)
}

/// The place in a gap: at `part` of it, by factors.
fn within(name: &'static str, gap: (Option<f64>, Option<f64>), part: f64) -> Result<f64, TrainError> {
    match gap {
        (Some(low), Some(high)) if 0.0 < low && low < high => Ok(low * (high / low).powf(part)),
        (low, high) => Err(TrainError::NoGap(name, low, high)),
    }
}

impl Published {
    /// From TOML text.
    pub fn parse(text: &str) -> Result<Published, TrainError> {
        toml::from_str(text).map_err(TrainError::Samples)
    }

    /// The thresholds that these samples give.
    pub fn derive(&self) -> Result<Thresholds, TrainError> {
        use Winner::{Draw, Nested, Shadow};
        let won = |w: Winner| self.sample.iter().filter(move |s| s.winner == w);
        let not = |w: Winner| self.sample.iter().filter(move |s| s.winner != w);
        let (faults, tlb) = (|s: &Sample| s.page_faults_e7, |s: &Sample| s.tlb_misses);

        let ratio = (
            most(won(Shadow).filter_map(|s| s.ratio_e7.highest())),
            least(won(Nested).filter_map(|s| s.ratio_e7.reached())),
        );
        let above = |x: Option<f64>| move |y: &f64| x.is_none_or(|x| *y > x);
        let not_shadow = most(not(Shadow).filter_map(|s| tlb(s).highest()));
        let shadow_above = least(won(Shadow).filter_map(|s| tlb(s).reached()).filter(above(not_shadow)));
        let tlb_miss_upper = within("tlb_miss_upper", (not_shadow, shadow_above), 0.5)?;

        let by_faults = |s: &&Sample| tlb(s).highest().is_none_or(|t| t <= tlb_miss_upper);
        let not_nested = most(not(Nested).filter(by_faults).filter_map(|s| faults(s).highest()));
        let nested_above = least(won(Nested).filter_map(|s| faults(s).reached()).filter(above(not_nested)));

        let least_shadow = least(won(Shadow).filter_map(|s| tlb(s).reached()));
        let least_nested = least(won(Nested).filter_map(|s| faults(s).reached()));
        let few = |x: Option<f64>, bound: Option<f64>| matches!((x, bound), (Some(x), Some(b)) if x <= b);
        let calm =
            |s: &&Sample| few(tlb(s).highest(), least_shadow) && few(faults(s).highest(), least_nested);
        let draw_faults = most(won(Draw).filter(calm).filter_map(|s| faults(s).reached()));
        let draw_tlb = most(won(Draw).filter(calm).filter_map(|s| tlb(s).reached()));
        Ok(Thresholds {
            page_fault_upper: 1e-7 * within("page_fault_upper", (not_nested, nested_above), 0.5)?,
            page_fault_lower: 1e-7 * within("page_fault_lower", (draw_faults, least_nested), 0.5)?,
            tlb_miss_upper,
            tlb_miss_lower: within("tlb_miss_lower", (draw_tlb, least_shadow), 0.5)?,
            p_to_t_upper: 1e-7 * within("p_to_t_upper", ratio, 2.0 / 3.0)?,
            p_to_t_lower: 1e-7 * within("p_to_t_lower", ratio, 1.0 / 3.0)?,
        })
    }
}

impl Thresholds {
    fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("page_fault_upper", self.page_fault_upper),
            ("page_fault_lower", self.page_fault_lower),
            ("tlb_miss_upper", self.tlb_miss_upper),
            ("tlb_miss_lower", self.tlb_miss_lower),
            ("p_to_t_upper", self.p_to_t_upper),
            ("p_to_t_lower", self.p_to_t_lower),
        ]
    }
}

/// DSP with the thresholds derived from the samples, and the other parameters of `base`.
pub fn train(published: &Published, base: &Named) -> Result<Trained, TrainError> {
    let t = published.derive()?;
    let Spec::Dsp(mut dsp) = base.spec.clone() else { return Err(TrainError::NotDsp(base.name.clone())) };
    let mut lines = vec![row(["threshold", "from samples", "published", "ratio"])];
    for ((name, x), (_, p)) in t.named().into_iter().zip(published.published.named()) {
        lines.push(vec![name.into(), text::digits(x), text::digits(p), format!("{:.2}", x / p)]);
    }
    dsp.page_fault_upper = text::round(t.page_fault_upper);
    dsp.page_fault_lower = text::round(t.page_fault_lower);
    dsp.tlb_miss_upper = text::round(t.tlb_miss_upper);
    dsp.tlb_miss_lower = text::round(t.tlb_miss_lower);
    dsp.p_to_t_upper = text::round(t.p_to_t_upper);
    dsp.p_to_t_lower = text::round(t.p_to_t_lower);
    let toml = format!(
        "# DSP with thresholds in the gaps that {} published samples leave.\n\
         # Written by `bifold policy train dsp --samples FILE`; not to be edited.\n{}",
        published.sample.len(),
        toml::to_string(&Spec::Dsp(dsp)).map_err(|e| TrainError::Solver(e.to_string()))?
    );
    Named::parse(&base.name, &toml).map_err(|e| TrainError::Solver(e.to_string()))?;
    Ok(Trained { table: text::table(&lines), toml })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper() -> Published {
        Published::parse(include_str!("../../../evidence/published/dsp-vee2011.toml")).unwrap()
    }

    #[test]
    fn the_papers_samples_give_its_thresholds_in_order_of_magnitude() {
        let paper = paper();
        assert_eq!(paper.sample.len(), 13);
        for ((name, x), (_, p)) in paper.derive().unwrap().named().into_iter().zip(paper.published.named()) {
            assert!((x / p).log10().abs() < 0.5, "{name}: {x} for {p}");
        }
        let trained = train(&paper, &Named::load("dsp").unwrap()).unwrap();
        assert!(trained.table.contains("tlb_miss_upper"), "{}", trained.table);
    }

    #[test]
    fn the_built_in_thresholds_are_the_published_ones() {
        let Spec::Dsp(dsp) = Named::load("dsp").unwrap().spec else { panic!("dsp is DSP") };
        let p = paper().published;
        assert_eq!((dsp.page_fault_upper, dsp.tlb_miss_upper), (p.page_fault_upper, p.tlb_miss_upper));
        assert_eq!((dsp.p_to_t_lower, dsp.p_to_t_upper), (p.p_to_t_lower, p.p_to_t_upper));
    }

    #[test]
    fn frequencies_are_read_as_they_are_printed() {
        let read = |s: &str| Words::try_from(s.to_string());
        assert_eq!(read("0.5"), Ok(Words::Reaches(0.5)));
        assert_eq!(read("<0.5"), Ok(Words::Below(0.5)));
        assert_eq!(read(">150000"), Ok(Words::Reaches(150_000.0)));
        assert_eq!(read("0, sometimes 100"), Ok(Words::Reaches(100.0)));
        assert_eq!(read("0 or 10000"), Ok(Words::Reaches(10_000.0)));
        assert_eq!(read("frequently >10"), Ok(Words::Reaches(10.0)));
        assert_eq!(read(""), Ok(Words::None));
        for wrong in ["many", "-1", "sometimes", "< 5"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn samples_without_a_gap_are_told() {
        let mut few = paper();
        few.sample.retain(|s| s.winner != Winner::Draw);
        assert!(few.derive().unwrap_err().to_string().contains("no gap for page_fault_lower"));
    }
}
