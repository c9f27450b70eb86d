//! The report as a self-contained HTML page. It makes no requests and works without scripts.

mod allocation;
mod axis;
mod batch;
mod best;
mod bytes;
mod composition;
mod errors;
mod escape;
mod family;
mod frame;
mod frontier;
mod graph;
mod headline;
mod histograms;
mod labels;
mod measured;
mod quality;
mod rows;
mod sensitivity;
mod sparsity;
mod table;
mod training;
mod way;

use super::Report;
pub use batch::of_batch;
use escape::escape;
pub(crate) use frame::PAGE_MARK;
pub use graph::of_graph;
use maud::html;
pub use sensitivity::of_sensitivity;

/// Returns the page. Equal reports give equal bytes.
pub fn to_html(report: &Report) -> String {
    let sections = [
        headline::section(report),
        quality::section(report),
        composition::section(report),
        measured::section(report),
        training::section(report),
        allocation::section(report),
        bytes::section(report),
        errors::section(report),
        sparsity::section(report),
        histograms::section(report),
        graph::section(report),
        table::section(report),
    ];
    frame::page(
        &format!("{}, compressed", headline::name_of(report)),
        &sections,
        &html! {
            "Written by " (escape(&report.producer)) ". The same figures, for programs: " code { "report.json" }
            ". To check the output again: " code { "briquette verify " (escape(&report.output)) }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn names_are_escaped() {
        let evil = "a.<script>alert(1)</script>\"'&.weight";
        let mut report = sample::of_layers(1);
        report.tensors.push(sample::tensor(evil.into(), 0));
        report.histograms[0].name = evil.into();
        report.model = format!("models/{evil}");
        report.output = evil.into();
        report.remarks.push(evil.into());
        report.stages.push(evil.into());
        report.seconds.push((evil.into(), 1.0));
        report.peak_meter = evil.into();
        let page = to_html(&report);
        assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
        assert!(!page.contains("\"'&.weight"), "no quote may end an attribute");
        assert_eq!(page.matches("<script>").count(), 1, "the page's own");
    }

    #[test]
    fn the_page_makes_no_requests() {
        let page = to_html(&sample::of_layers(50));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn every_tensor_is_in_the_table() {
        let report = sample::of_layers(60);
        let page = to_html(&report);
        let table = page.split_once("<tbody id=\"tensors\">").map(|(_, rest)| rest).unwrap();
        assert_eq!(table.matches("<tr>").count(), report.tensors.len());
        for tensor in &report.tensors {
            assert!(
                table.contains(&format!("<th scope=\"row\">{}</th>", escape::name(&tensor.name).0)),
                "{}",
                tensor.name
            );
        }
    }

    #[test]
    fn the_largest_and_the_worst_of_very_many_tensors_are_shown() {
        let mut report = sample::of_layers(40_000);
        // A very large tensor and a tensor with a very large error come last, where a truncated list would lose
        // them.
        let n = report.tensors.len();
        report.tensors[n - 1].before_bytes = 1 << 30;
        report.tensors[n - 3].error.as_mut().unwrap().sqnr_db = Some(-3.0);
        let page = to_html(&report);
        assert!(page.len() < 600_000, "{} bytes", page.len());
        let table = page.split_once("<tbody id=\"tensors\">").map(|(_, rest)| rest).unwrap();
        let n_rows = table.matches("<tr>").count();
        assert!((300..=600).contains(&n_rows), "{n_rows}");
        for tensor in [&report.tensors[n - 1], &report.tensors[n - 3]] {
            assert!(table.contains(&format!("<th scope=\"row\">{}</th>", escape::name(&tensor.name).0)));
        }
        assert!(page.contains("of 120,000 tensors") && page.contains(" are in <code>report.json</code>"));
    }

    #[test]
    fn an_empty_report_has_no_nan() {
        let mut broken = sample::of_layers(1);
        broken.tensors[0].bits_per_weight = f64::NAN;
        broken.tensors[0].sparsity = f64::INFINITY;
        broken.tensors[0].error = Some(crate::report::ErrorReport { sqnr_db: None, cosine: None, relative: f64::NAN });
        broken.tensors[1].error = Some(crate::report::ErrorReport {
            sqnr_db: Some(f64::NEG_INFINITY),
            cosine: None,
            relative: f64::INFINITY,
        });
        broken.histograms[0].limit = f32::INFINITY;
        broken.histograms[0].after = Vec::new();
        broken.seconds[0].1 = f64::NAN;
        for report in [sample::empty(), broken] {
            let page = to_html(&report);
            for word in ["NaN", "inf%", ">inf", " inf", "\"inf"] {
                assert!(!page.contains(word), "{word}");
            }
        }
    }

    #[test]
    fn a_smaller_student_is_compared_with_the_original() {
        let report = sample::of_student();
        let page = to_html(&report).replace("<wbr>", "");
        assert!(page.contains("<span>140.00 kB <span class=\"arrow\">→</span> 9.00 kB</span>"));
        assert!(page.contains("<b>Before</b> 139.26 kB") && page.contains("linear <small>131.07 kB → 512 B"), "{page}");
        let bytes = page.split_once("id=\"bytes\"").unwrap().1.split_once("</section>").unwrap().0;
        for row in ["up.weight</span>", "65.54 kB → 512 B", "65.54 kB → gone", "8.19 kB <small>unchanged"] {
            assert!(bytes.contains(row), "{row}: {bytes}");
        }
        assert!(page.contains("2 tensors of the original are not in the output"), "{page}");
    }

    #[test]
    fn quality_comes_before_bytes() {
        let page = to_html(&sample::of_layers(2));
        let place = |what: &str| page.find(what).unwrap();
        assert!(page.split_once("</header>").unwrap().0.contains("cosine 0.9995."), "in the headline too");
        assert!(place("id=\"quality\"") < place("id=\"composition\""));
        assert!(place("pair spearman") < place("id=\"composition\""), "its figures are there");
        assert_eq!(page.matches("pair spearman").count(), 1, "and nowhere else");
        assert!(!to_html(&sample::empty()).contains("id=\"quality\""), "empty without an evaluation");
    }

    #[test]
    fn many_tensors_share_bars() {
        let page = to_html(&sample::of_layers(100));
        assert!(page.matches("class=\"row\"").count() < 100);
    }
}
