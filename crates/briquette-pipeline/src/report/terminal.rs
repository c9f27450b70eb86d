//! tmp
use super::Report;
/// x
pub fn to_terminal(report: &Report, _width: usize, _color: bool) -> String {
    format!(
        "{} -> {} (predicted {}) in {:.3} s {:?} peak {:?}\n",
        report.before.file_bytes,
        report.after.file_bytes,
        report.predicted_bytes,
        report.total_seconds,
        report.seconds,
        report.peak_bytes
    )
}
