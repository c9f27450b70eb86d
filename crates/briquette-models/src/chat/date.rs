//! Today's date for templates that print it.

/// Formats today's date like `strftime`. Only `%Y`, `%m`, `%d` and `%b` are supported.
pub(super) fn today(format: &str) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() as i64 / 86_400);
    let name = MONTHS[month - 1];
    let values =
        [("%Y", format!("{year}")), ("%m", format!("{month:02}")), ("%d", format!("{day:02}")), ("%b", name.into())];
    values.into_iter().fold(format.to_string(), |text, (key, value)| text.replace(key, &value))
}

/// Converts days since 1970 to year, month and day. Source: Howard Hinnant, "chrono-compatible low-level date
/// algorithms".
fn civil(days: i64) -> (i64, usize, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_numbers_convert_to_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_780), (2026, 11, 23));
    }
}
