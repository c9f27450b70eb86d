//! Tables of docs/benchmarks.md say what their figures are.

use crate::sandbox::repository;

/// Words that name the statistic of a table.
const STATISTICS: [&str; 6] = ["median", "best", "mean", "one r", "both of two runs", "not measured"];

#[test]
fn each_table_of_the_benchmarks_names_its_statistic_and_its_processor() {
    let text = std::fs::read_to_string(repository().join("docs/benchmarks.md")).unwrap();
    let mut above = "";
    let mut n_tables = 0;
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        if line.starts_with('|') && !above.starts_with('|') {
            n_tables += 1;
            let note = above.to_lowercase();
            let names_statistic = STATISTICS.iter().any(|word| note.contains(word));
            assert!(names_statistic && above.contains(" Processor: "), "line {}: found {above:?} above a table", i + 1);
        }
        above = line;
    }
    assert!(n_tables >= 40, "{n_tables}");
}
