//! Bytes by role before and after, as two bars with one scale.

use crate::{Report, numbers};
use briquette_core::Role;
use std::fmt::Write;

/// Bytes of a role, before and after.
#[derive(Debug)]
struct RoleBytes {
    role: Role,
    before: u64,
    after: u64,
}

/// Returns the figure; empty without bytes.
pub(super) fn section(report: &Report) -> String {
    let parts = parts_of(report);
    let total = |of: fn(&RoleBytes) -> u64| parts.iter().map(of).sum::<u64>();
    let (before, after) = (total(|part| part.before), total(|part| part.after));
    let scale = before.max(after);
    if scale == 0 {
        return String::new();
    }
    format!(
        "<section aria-labelledby=\"composition\">\n<figure class=\"composition\">\n\
         <figcaption><h2 id=\"composition\">Bytes by role</h2>\n\
         <p>Bytes of the tensors by role, without file headers. Both bars have the same scale.</p></figcaption>\n\
         <p class=\"bar-name\"><b>Before</b> {}</p>\n{}\n<p class=\"bar-name\"><b>After</b> {}</p>\n{}\n{}</figure>\n</section>\n",
        numbers::bytes(before),
        bar(&parts, |part| part.before, scale),
        numbers::bytes(after),
        bar(&parts, |part| part.after, scale),
        legend(&parts),
    )
}

fn parts_of(report: &Report) -> Vec<RoleBytes> {
    let part = |role: Role| {
        let members = || report.tensors.iter().filter(move |tensor| tensor.role == role);
        let gone = report.gone.iter().filter(|tensor| tensor.role == role).map(|tensor| tensor.bytes);
        let before = members().map(|tensor| tensor.before_bytes).chain(gone).sum();
        RoleBytes { role, before, after: members().map(|tensor| tensor.after_bytes).sum() }
    };
    Role::ALL.map(part).into_iter().filter(|part| part.before + part.after > 0).collect()
}

fn bar(parts: &[RoleBytes], of: fn(&RoleBytes) -> u64, scale: u64) -> String {
    let mut out = String::from("<svg class=\"stack\" height=\"44\" aria-hidden=\"true\">");
    let mut x = 0.0;
    for part in parts {
        let width = 100.0 * numbers::share(of(part), scale);
        let _ = write!(
            out,
            "<rect class=\"role-{}\" x=\"{x:.3}%\" width=\"{width:.3}%\" height=\"44\"><title>{}: {}</title></rect>",
            part.role.name(),
            part.role.name(),
            numbers::bytes(of(part)),
        );
        x += width;
    }
    out + "</svg>"
}

fn legend(parts: &[RoleBytes]) -> String {
    let items: String = parts.iter().fold(String::new(), |mut out, part| {
        let (role, before, after) = (part.role.name(), numbers::bytes(part.before), numbers::bytes(part.after));
        let change =
            if part.before == part.after { format!("{after}, unchanged") } else { format!("{before} → {after}") };
        let _ = writeln!(out, "<li><span class=\"key role-{role}\"></span> {role} <small>{change}</small></li>");
        out
    });
    format!("<ul class=\"legend\">\n{items}</ul>\n")
}
