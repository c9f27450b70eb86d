//! The page of a batch. Each job is a row with bytes, quality, time, status and a link to its own page.

use super::escape::{escape, name};
use super::frame::{page, scrolling};
use super::{frontier, table, way};
use crate::report::figures::REFERENCE;
use crate::report::{BatchReport, JobResult, JobStatus, numbers};
use maud::{Markup, html};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Largest number of jobs on the page.
const MAX_JOBS: usize = 1000;
/// Largest number of failed jobs that are shown before others.
const MAX_FAILED: usize = 500;

/// Returns the page. Equal reports give equal bytes. `n_left` jobs did not run.
pub fn of_batch(report: &BatchReport, n_left: usize) -> String {
    let shown = shown(&report.jobs);
    let metrics = metrics(&shown);
    let sections = [headline(report, n_left), frontier::section(report), all(report, &shown, &metrics)];
    let file = numbers::last_part(&report.jobs_file.to_string_lossy()).to_string();
    let footer = html! {
        "Written by " (concat!("briquette ", env!("CARGO_PKG_VERSION"))) ". One line of JSON for each job: "
        code { (name(numbers::last_part(&report.journal.to_string_lossy()))) }
    };
    page(&format!("{file}, {} jobs", report.jobs.len() + n_left), &sections, &footer)
}

/// Returns all jobs; of very many, the failed ones first, then others, in their order.
fn shown(jobs: &[JobResult]) -> Vec<&JobResult> {
    if jobs.len() <= MAX_JOBS {
        return jobs.iter().collect();
    }
    let places = |failed: bool| (0..jobs.len()).filter(move |&i| (jobs[i].status == JobStatus::Failed) == failed);
    let mut chosen: Vec<usize> = places(true).take(MAX_FAILED).collect();
    chosen.extend(places(false).take(MAX_JOBS - chosen.len()));
    chosen.sort_unstable();
    chosen.into_iter().map(|i| &jobs[i]).collect()
}

/// Returns the names of all measured metrics, except those of the originals.
fn metrics<'a>(jobs: &[&'a JobResult]) -> Vec<&'a str> {
    let names = jobs.iter().flat_map(|job| job.metrics.keys());
    let names: BTreeSet<&str> = names.filter(|name| !name.starts_with(REFERENCE)).map(String::as_str).collect();
    names.into_iter().collect()
}

fn headline(report: &BatchReport, n_left: usize) -> Markup {
    let n = report.jobs.len() + n_left;
    let counts = [
        (report.n_done, "done"),
        (report.n_skipped, "done before"),
        (report.n_failed, "failed"),
        (n_left, "not started before the stop"),
    ];
    let counts: Vec<(usize, &str)> = counts.into_iter().filter(|(n, _)| *n > 0).collect();
    let quality = report.quality_text();
    html! {
        header {
            p class="kicker" {
                (name(numbers::last_part(&report.jobs_file.to_string_lossy())))
                @if let Some(shard) = &report.shard { " · shard " (escape(shard)) }
            }
            h1 { span { (report.sizes_text().unwrap_or_else(|| "No output".into())) } }
            @if !quality.is_empty() { p class="verdict" { (escape(&quality)) } }
            p class="fine" {
                (n) (if n == 1 { " job: " } else { " jobs: " })
                @if counts.is_empty() { "no jobs" }
                @for (place, (n, what)) in counts.iter().enumerate() { @if place > 0 { ", " } b { (n) } " " (what) }
                ". " (time(report))
            }
        }
    }
}

/// Returns the time of this run, and of all jobs if some ran before.
fn time(report: &BatchReport) -> String {
    let all = report.jobs.iter().map(|job| job.seconds_before.unwrap_or(job.seconds)).sum();
    let of_all =
        if report.n_skipped > 0 { format!(" All jobs took {}.", numbers::seconds(all)) } else { String::new() };
    format!("This run took {} by the wall clock.{of_all}", numbers::seconds(report.seconds))
}

/// Returns the table of jobs.
fn all(report: &BatchReport, jobs: &[&JobResult], metrics: &[&str]) -> Markup {
    let directory = report.page.parent().unwrap_or(Path::new(""));
    let n_left = report.jobs.len() - jobs.len();
    let table = html! {
        table class="tensors jobs" {
            thead {
                tr {
                    @for heading in ["Job", "Outcome"] { th scope="col" { (heading) } }
                    @for heading in ["Bytes before", "Bytes after", "Ratio"] {
                        th scope="col" class="num" { (heading) }
                    }
                    @for metric in metrics { th scope="col" class="num" { (escape(metric)) } }
                    th scope="col" class="num" { "Seconds" }
                    th scope="col" { "Error or remark" }
                }
            }
            "\n"
            tbody id="jobs" {
                "\n"
                @for job in jobs { (row(job, metrics, directory)) "\n" }
            }
        }
    };
    html! {
        section aria-labelledby="all" {
            h2 id="all" { "Jobs" }
            @if n_left > 0 { p class="fine" { (n_left) " more are in the journal." } }
            (scrolling("all", &table))
        }
    }
}

fn row(job: &JobResult, metrics: &[&str], directory: &Path) -> Markup {
    let (class, outcome) = match job.status {
        JobStatus::Done => ("done", "done"),
        JobStatus::Skipped => ("done", "done before"),
        JobStatus::Failed => ("failed", "failed"),
    };
    let bytes = |n: Option<u64>| cell(n.map(|n| (n as f64, html! { (numbers::count(n)) })));
    let seconds = job.seconds_before.unwrap_or(job.seconds);
    html! {
        tr {
            th scope="row" { (link(job, directory)) }
            td class=(class) { (outcome) }
            (bytes(job.before_bytes))
            (bytes(job.after_bytes))
            (cell(job.ratio.map(|ratio| (ratio, html! { (format_args!("{ratio:.2}x")) }))))
            @for metric in metrics { (cell(measured(&job.metrics, metric))) }
            (table::cell(seconds, numbers::decimal(seconds, 2)))
            td { (escape(&remark(job))) }
        }
    }
}

/// Returns a metric, and the original's value if there is one.
fn measured(metrics: &BTreeMap<String, Option<f64>>, metric: &str) -> Option<(f64, Markup)> {
    let value = (*metrics.get(metric)?)?;
    let before = metrics.get(&format!("{REFERENCE}{metric}")).copied().flatten();
    let text = html! {
        (numbers::decimal(value, 4))
        @if let Some(before) = before { " " small { "of " (numbers::decimal(before, 4)) } }
    };
    Some((value, text))
}

/// Returns a cell with a number and its sort key.
fn cell(found: Option<(f64, Markup)>) -> Markup {
    let (value, text) = found.unwrap_or((f64::NAN, Markup::default()));
    table::cell(value, text)
}

fn remark(job: &JobResult) -> String {
    let redone = job.redone.as_ref().map(|why| format!("run again: {why}"));
    let trained = job.trained_with.as_ref().map(|other| format!("trained once for {other}"));
    let remarks: Vec<String> = [job.error.clone(), job.note.clone(), redone, trained].into_iter().flatten().collect();
    remarks.join("; ")
}

/// Returns the job's name, as a link to its page if there is one.
fn link(job: &JobResult, directory: &Path) -> Markup {
    let way = job.made().and_then(|output| way::to_report(directory, output));
    html! {
        @match way {
            Some(way) => a href=(way) { (name(&job.job)) }
            None => (name(&job.job))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{batch, job};

    #[test]
    fn every_job_is_a_row_with_its_figures_and_a_link() {
        let mut jobs = vec![job("a b", JobStatus::Done), job("c", JobStatus::Skipped), job("d", JobStatus::Failed)];
        jobs[0].metrics = [("cosine".to_string(), Some(0.98769)), ("accuracy".into(), None)].into();
        jobs[1].metrics = [("cosine".to_string(), Some(0.9)), ("reference_cosine".into(), Some(1.0))].into();
        (jobs[1].seconds_before, jobs[1].trained_with) = (Some(77.0), Some("a b".into()));
        let page = of_batch(&batch(jobs.clone()), 2);
        assert_eq!(page, of_batch(&batch(jobs), 2), "the same report gives the same bytes");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("<tr><th scope=\"row\">")).collect();
        assert_eq!(rows.len(), 3);
        for phrase in
            ["<a href=\"./a%20b/report.html\">a b</a>", ">done<", ">4,000<", ">1,000<", ">4.00x<", ">0.9877<", ">0.25<"]
        {
            assert!(rows[0].contains(phrase), "{phrase}: {}", rows[0]);
        }
        for phrase in [">done before<", "0.9000 <small>of 1.0000</small>", ">77.00<", "trained once for a b"] {
            assert!(rows[1].contains(phrase), "{phrase}: {}", rows[1]);
        }
        assert!(
            rows[2].contains(">failed<") && rows[2].contains("no such file") && !rows[2].contains("href"),
            "{}",
            rows[2]
        );
        assert!(page.contains("<b>2</b> not started") && page.contains("5 jobs"));
        assert!(page.contains("<h1><span>4.00 kB → 1.00 kB</span></h1>") && page.contains("cosine 0.9000 to 0.9877"));
        assert!(page.contains("This run took 1 min 15 s by the wall clock. All jobs took "), "{page}");
        assert!(!page.contains("/out/sweep"), "its own directory is not shown");
        assert!(page.matches("<circle").count() == 2 && !page.contains("NaN"), "cosine of two jobs is plotted");
    }

    #[test]
    fn names_are_escaped_in_text_and_links() {
        let evil = "a<script>alert(1)</script>\"'&";
        let mut jobs = vec![job(evil, JobStatus::Done), job("x", JobStatus::Failed)];
        jobs[0].metrics = [(evil.to_string(), Some(1.0))].into();
        jobs[1].metrics = jobs[0].metrics.clone();
        jobs[1].after_bytes = Some(7);
        (jobs[1].error, jobs[0].redone) = (Some(evil.into()), Some(evil.into()));
        jobs[0].output = Some("javascript:alert(1)".into());
        let mut report = batch(jobs);
        report.page = std::path::absolute("sweep.report.html").unwrap();
        report.jobs_file = evil.into();
        let page = of_batch(&report, 0);
        assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
        assert!(page.contains("href=\"./javascript%3Aalert%281%29/report.html\""), "{page}");
        assert_eq!(page.matches("<script>").count(), 1, "the page's own");
    }

    #[test]
    fn failed_jobs_are_shown_first_of_very_many() {
        let of = |i: usize| job(&format!("job{i}"), if i % 1000 == 999 { JobStatus::Failed } else { JobStatus::Done });
        let report = batch((0..20_000).map(of).collect());
        let page = of_batch(&report, 0);
        assert!(page.len() < 1_000_000 && page.contains("19000 more are in the journal"), "{}", page.len());
        assert_eq!(page.matches(">failed<").count(), 20);
        assert_eq!(page.matches("<tr><th scope=\"row\">").count(), MAX_JOBS);
    }
}
