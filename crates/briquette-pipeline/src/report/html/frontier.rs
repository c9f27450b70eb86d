//! The frontier of a batch: bytes and quality of every model, with a line through the Pareto front.

mod plot;

use crate::report::BatchReport;
use crate::report::figures::REFERENCE;
use maud::{Markup, html};
use plot::{FrontierPlot, ShownModel};
use std::collections::BTreeSet;
use std::path::Path;

/// Largest number of plotted metrics.
const MAX_PLOTS: usize = 4;

/// Returns a plot for each metric that at least two models have; empty if there is none.
pub(super) fn section(report: &BatchReport) -> Markup {
    let models = candidates(report);
    let names = models.iter().flat_map(|model| model.metrics.keys());
    let names: BTreeSet<&str> = names.map(String::as_str).filter(|name| !name.starts_with(REFERENCE)).collect();
    let plots = names.into_iter().filter_map(|metric| FrontierPlot::of(&models, metric));
    let plots: Vec<FrontierPlot> = plots.take(MAX_PLOTS).collect();
    if plots.is_empty() {
        return Markup::default();
    }
    let directory = report.page.parent().unwrap_or(Path::new(""));
    html! {
        section aria-labelledby="quality" {
            h2 id="quality" { "Bytes and quality" }
            p class="fine" {
                "Each mark is a model and links to its page. The x axis is the bytes of weight files. The line \
                 connects the best models: for each, no smaller model is as good. All figures of jobs are in "
                a href="#all" { "the table" } "."
            }
            (legend(&plots))
            div class="frontiers" { @for plot in &plots { (plot.to_html(directory)) } }
        }
    }
}

/// Returns the models to choose from, without failed jobs.
fn candidates(report: &BatchReport) -> Vec<ShownModel<'_>> {
    let of_jobs = report.jobs.iter().filter(|job| !job.is_failed()).filter_map(|job| {
        let (output, bytes) = (job.made(), job.after_bytes?);
        Some(ShownModel { name: &job.job, output, bytes, metrics: &job.metrics, is_job: true })
    });
    let of_others = report.also.iter().map(|other| ShownModel {
        name: &other.name,
        output: Some(&other.output),
        bytes: other.after_bytes,
        metrics: &other.metrics,
        is_job: false,
    });
    of_jobs.chain(of_others).collect()
}

/// Returns the legend of the marks that occur.
fn legend(plots: &[FrontierPlot]) -> Markup {
    let has = |is_job: bool| plots.iter().any(|plot| plot.has(is_job));
    let parts = [
        (has(true), "dot", "a job"),
        (has(false), "other", "another output"),
        (true, "edge", "best for its size"),
        (plots.iter().any(FrontierPlot::has_originals), "original", "the original"),
    ];
    html! {
        p class="legend fine" {
            @for (_, key, words) in parts.into_iter().filter(|(is_there, ..)| *is_there) {
                span { span class={ "key " (key) } {} " " (words) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{batch, job};
    use crate::report::{JobResult, JobStatus, OtherOutput};
    use std::collections::BTreeMap;

    type Metrics = BTreeMap<String, Option<f64>>;

    fn made(name: &str, after_bytes: u64, metrics: &[(&str, f64)]) -> JobResult {
        let metrics = metrics.iter().map(|(name, value)| (name.to_string(), Some(*value))).collect();
        JobResult { after_bytes: Some(after_bytes), metrics, ..job(name, JobStatus::Done) }
    }

    fn other(name: &str, after_bytes: u64, metrics: Metrics) -> OtherOutput {
        OtherOutput { name: name.into(), output: format!("/else/{name}").into(), after_bytes, metrics }
    }

    fn page_of(report: &BatchReport) -> String {
        section(report).into_string()
    }

    /// Returns the titles of the marks of a class, in their order.
    fn titles<'a>(page: &'a str, class: &str) -> Vec<&'a str> {
        let marks = page.lines().filter(|line| line.contains(&format!("class=\"{class}\"")));
        marks.map(|line| line.split_once("<title>").unwrap().1.split_once("</title>").unwrap().0).collect()
    }

    fn names<'a>(page: &'a str, class: &str) -> Vec<&'a str> {
        titles(page, class).into_iter().map(|title| title.split_once(':').unwrap().0).collect()
    }

    #[test]
    fn the_line_connects_the_best_for_both_directions_of_metrics() {
        let sizes = [
            ("large", 23_000_000, 0.9),
            ("small", 6_000_000, 0.5),
            ("worse", 12_000_000, 0.4),
            ("mid", 9_000_000, 0.6),
        ];
        let jobs =
            |metric: &str| batch(sizes.iter().map(|(name, n, value)| made(name, *n, &[(metric, *value)])).collect());
        let (cosine, loss) = (page_of(&jobs("cosine")), page_of(&jobs("loss")));
        assert_eq!(
            (names(&cosine, "model best"), names(&cosine, "model")),
            (vec!["small", "mid", "large"], vec!["worse"])
        );
        assert_eq!((names(&loss, "model best"), names(&loss, "model")), (vec!["small", "worse"], vec!["mid", "large"]));
        assert!(cosine.contains("higher is better; from 0.4000 to 0.9000") && loss.contains("lower is better"));
        // From 5 to 25 MB and from 0.4 to 0.9: 6 MB is at 5 %, 9 MB at 20 %, 23 MB at 90 %.
        assert!(cosine.contains("d=\"M5.00 80.00H20.00V60.00H90.00V0.00H100\""), "{cosine}");
        for end in [">5 MB<", ">25 MB<", ">0.4<", ">0.9<", ">small<", ">mid<", ">large<"] {
            assert!(cosine.contains(end), "{end}: {cosine}");
        }
        assert!(!cosine.contains(">worse<"), "only the best have labels: {cosine}");
    }

    #[test]
    fn marks_with_an_output_are_links_and_names_are_escaped() {
        let evil = "a<script>alert(1)</script>\"'&";
        let mut jobs = vec![made(evil, 1000, &[(evil, 1.0)]), made("no output", 2000, &[(evil, 2.0)])];
        (jobs[0].output, jobs[1].output) = (Some("/out/a b".into()), None);
        let failed = JobResult { status: JobStatus::Failed, ..made("failed", 10, &[(evil, 9.0)]) };
        jobs.push(failed);
        let mut report = batch(jobs);
        report.also.push(other(evil, 500, report.jobs[0].metrics.clone()));
        report.also[0].output = "/javascript:alert(1)".into();
        let page = page_of(&report);
        assert!(!page.contains("<script>") && !page.contains("\"'&") && page.contains("&lt;script&gt;"), "{page}");
        assert!(page.contains("<a class=\"model\" href=\"./a%20b/report.html\"><title>a&lt;script&gt;"), "{page}");
        assert!(page.contains("href=\"./../javascript%3Aalert%281%29/report.html\""), "{page}");
        assert!(page.contains("<g class=\"model best\"><title>no output:"), "{page}");
        assert!(!page.contains("failed"), "a failed job has no mark: {page}");
        assert_eq!(page.matches("href=").count(), 3, "two marks and the table");
    }

    #[test]
    fn other_outputs_have_another_mark_and_may_beat_jobs() {
        let mut report = batch(vec![made("a", 1000, &[("cosine", 0.9)]), made("b", 2000, &[("cosine", 0.95)])]);
        let alone = page_of(&report);
        assert!(!alone.contains("another output") && alone.matches("<circle").count() == 2);
        let metrics = Metrics::from([("cosine".into(), Some(0.96))]);
        report.also = vec![other("theirs", 1500, metrics), other("unmeasured", 1, Metrics::new())];
        let page = page_of(&report);
        assert!(page.contains("another output") && page.contains("1 more are not drawn"), "{page}");
        assert_eq!((page.matches("<circle").count(), page.matches("<path class=\"other\"").count()), (2, 1));
        assert_eq!((names(&page, "model best"), names(&page, "model")), (vec!["a", "theirs"], vec!["b"]));
        assert_eq!(page, page_of(&report), "the same report gives the same bytes");
        let json = |report: &BatchReport| serde_json::to_string(report).unwrap();
        assert!(json(&report).contains("\"also\":[{\"name\":\"theirs\""));
        report.also.clear();
        assert!(!json(&report).contains("also"));
    }

    #[test]
    fn one_model_has_no_plot_and_equal_models_are_all_on_the_line() {
        let one = made("a", 1000, &[("cosine", 0.9)]);
        assert_eq!(page_of(&batch(vec![one.clone()])), "");
        let page = page_of(&batch(vec![one.clone(), JobResult { job: "b".into(), ..one.clone() }]));
        assert_eq!(names(&page, "model best"), ["a", "b"]);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        let zero = made("a", 0, &[("kl", 0.0)]);
        let page = page_of(&batch(vec![zero.clone(), zero]));
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn values_that_are_not_finite_are_not_drawn() {
        let mut jobs: Vec<JobResult> = [0.9, f64::NAN, f64::INFINITY, 1e300, 0.8]
            .iter()
            .map(|value| made("a", 1000, &[("cosine", *value)]))
            .collect();
        jobs.push(made("a", 1000, &[]));
        jobs[5].metrics.insert("cosine".into(), None);
        let page = page_of(&batch(jobs));
        assert_eq!(page.matches("<circle").count(), 2);
        assert!(page.contains("4 more are not drawn") && page.contains("from 0.8000 to 0.9000"), "{page}");
    }

    #[test]
    fn each_value_of_an_original_is_a_dashed_line() {
        let of = |bytes: u64, before: f64| made("a", bytes, &[("perplexity", 20.0), ("reference_perplexity", before)]);
        let page = page_of(&batch(vec![of(1, 18.531), of(2, 18.53099), of(3, 40.0)]));
        assert_eq!(page.matches("<line class=\"original\"").count(), 2, "18.5310 is one");
        for words in [
            ">original 18.5310</text>",
            ">original 40.0000</text>",
            "the original has 18.5310, 40.0000",
            "</span> the original<",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert_eq!(page.matches("<figure").count(), 1, "the original alone has no plot");
        let without = page_of(&batch(vec![made("a", 1, &[("kl", 1.0)]), made("b", 2, &[("kl", 2.0)])]));
        assert!(!without.contains("original"), "{without}");
    }

    #[test]
    fn the_best_of_very_many_are_drawn() {
        let mut jobs: Vec<JobResult> = (0..5000).map(|i| made("a", 2000 + i, &[("cosine", 0.5)])).collect();
        jobs.push(made("best", 9000, &[("cosine", 0.9)]));
        let page = page_of(&batch(jobs));
        assert_eq!(page.matches("<circle").count(), 1000);
        assert_eq!(names(&page, "model best"), ["a", "best"]);
        assert!(page.contains("4001 more are not drawn") && page.len() < 500_000, "{}", page.len());
    }
}
