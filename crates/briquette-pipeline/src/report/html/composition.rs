//! Bytes by role before and after, as two bars with one scale.

use crate::report::{Report, numbers};
use briquette_core::Role;
use maud::{Markup, html};

/// Bytes of a role, before and after.
#[derive(Debug)]
struct RoleBytes {
    role: Role,
    before: u64,
    after: u64,
}

/// Returns the figure; empty without bytes.
pub(super) fn section(report: &Report) -> Markup {
    let parts = parts_of(report);
    let total = |of: fn(&RoleBytes) -> u64| parts.iter().map(of).sum::<u64>();
    let (before, after) = (total(|part| part.before), total(|part| part.after));
    let scale = before.max(after);
    if scale == 0 {
        return Markup::default();
    }
    html! {
        section aria-labelledby="composition" {
            figure class="composition" {
                figcaption {
                    h2 id="composition" { "Bytes by role" }
                    p { "Bytes of the tensors by role, without file headers. Both bars have the same scale." }
                }
                p class="bar-name" { b { "Before" } " " (numbers::bytes(before)) }
                (bar(&parts, |part| part.before, scale))
                p class="bar-name" { b { "After" } " " (numbers::bytes(after)) }
                (bar(&parts, |part| part.after, scale))
                ul class="legend" { @for part in &parts { (legend(part)) "\n" } }
            }
        }
    }
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

fn bar(parts: &[RoleBytes], of: fn(&RoleBytes) -> u64, scale: u64) -> Markup {
    let mut end = 0.0;
    let bars = parts.iter().map(|part| {
        let (x, width) = (end, 100.0 * numbers::share(of(part), scale));
        end += width;
        (part.role.name(), of(part), x, width)
    });
    html! {
        svg class="stack" height="44" aria-hidden="true" {
            @for (role, bytes, x, width) in bars {
                rect class={ "role-" (role) } x=(format_args!("{x:.3}%"))
                    width=(format_args!("{width:.3}%")) height="44" {
                    title { (role) ": " (numbers::bytes(bytes)) }
                }
            }
        }
    }
}

fn legend(part: &RoleBytes) -> Markup {
    let (role, before, after) = (part.role.name(), numbers::bytes(part.before), numbers::bytes(part.after));
    html! {
        li {
            span class={ "key role-" (role) } {} " " (role) " "
            small {
                @if part.before == part.after { (after) ", unchanged" } @else { (before) " → " (after) }
            }
        }
    }
}
