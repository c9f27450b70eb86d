//! Allocation of a size budget to tensors, with the least total loss.

use crate::quant::candidate::Candidate;
use crate::quant::siblings::{self, Allotted};
use std::borrow::Cow;

/// Bisection steps for the Lagrange multiplier: they determine it to one part in 2^60.
const HALVINGS: usize = 100;

/// Chooses one candidate per tensor with the least `Σ loss` and `Σ bytes` at most `most`.
///
/// Returns `None` if the smallest candidates already exceed `most`. All tensors of one of the `groups` get
/// candidates of the same kernel, if there is a kernel for which each of them has candidates.
///
/// For a Lagrange multiplier `λ`, each tensor takes the candidate of least `loss + λ·bytes`. Bisection finds
/// the smallest `λ` within the budget. The remaining bytes go to the candidates that save the most loss per
/// byte. Then pairs of tensors exchange bytes while that reduces the loss. A group counts as one tensor, whose
/// candidates are the optima over `λ` for each kernel.
///
/// Source: Y. Shoham, A. Gersho, "Efficient bit allocation for an arbitrary set of quantizers", 1988.
pub fn allocate(tensors: &[Vec<Candidate>], groups: &[Vec<usize>], most: f64) -> Option<Vec<usize>> {
    let (all, mut chosen) = (siblings::allotted(tensors, groups), vec![0; tensors.len()]);
    let candidates: Vec<Cow<[Candidate]>> = all.iter().map(Allotted::candidates).collect();
    let found = allocate_each(&candidates, most)?;
    all.iter().zip(found).for_each(|(one, at)| one.places(at).for_each(|(tensor, place)| chosen[tensor] = place));
    Some(chosen)
}

fn allocate_each(tensors: &[Cow<[Candidate]>], most: f64) -> Option<Vec<usize>> {
    let total = |chosen: &[usize]| tensors.iter().zip(chosen).map(|(choices, &at)| choices[at].bytes).sum::<f64>();
    let smallest = at_multiplier(tensors, f64::INFINITY)?;
    if total(&smallest) > most {
        return None;
    }
    let freest = at_multiplier(tensors, 0.0)?;
    if total(&freest) <= most {
        return Some(freest);
    }
    // The bounds of the exponent of λ, wide enough for any ratio of loss to bytes.
    let (mut low, mut high, mut best) = (-200.0_f64, 200.0_f64, smallest);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        let chosen = at_multiplier(tensors, middle.exp2())?;
        if total(&chosen) <= most {
            (high, best) = (middle, chosen);
        } else {
            low = middle;
        }
    }
    spend(tensors, &mut best, most);
    for _ in 0..EXCHANGES {
        if !exchange(tensors, &mut best, most) {
            break;
        }
        spend(tensors, &mut best, most);
    }
    Some(best)
}

/// Returns each tensor's candidate of least `loss + λ·bytes`, or of the fewest bytes if λ is infinite.
///
/// `None` if a tensor has no candidates.
fn at_multiplier(tensors: &[Cow<[Candidate]>], multiplier: f64) -> Option<Vec<usize>> {
    let cost = |choice: &Candidate| match multiplier.is_finite() {
        true => (choice.loss + multiplier * choice.bytes, choice.bytes),
        false => (choice.bytes, choice.loss),
    };
    let less = |a: &Candidate, b: &Candidate| {
        let (a, b) = (cost(a), cost(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    tensors.iter().map(|choices| (0..choices.len()).min_by(|&a, &b| less(&choices[a], &choices[b]))).collect()
}

/// The maximum number of exchanges, and the maximum distance between the candidates of an exchange.
const EXCHANGES: usize = 64;
const NEAR: usize = 6;

/// Improves one tensor and worsens another by the pair that reduces the total loss most. Returns whether there
/// was such a pair.
fn exchange(tensors: &[Cow<[Candidate]>], chosen: &mut [usize], most: f64) -> bool {
    let left = most - tensors.iter().zip(&*chosen).map(|(choices, &at)| choices[at].bytes).sum::<f64>();
    let near = |tensor: usize| {
        let (choices, now) = (&tensors[tensor], chosen[tensor]);
        let places = now.saturating_sub(NEAR)..(now + NEAR + 1).min(choices.len());
        places.map(move |at| (at, choices[at].bytes - choices[now].bytes, choices[now].loss - choices[at].loss))
    };
    let mut best = (0.0, [(0, 0); 2]);
    for gaining in 0..tensors.len() {
        for (to, more, saved) in near(gaining).filter(|&(_, _, saved)| saved > 0.0) {
            for giving in (0..tensors.len()).filter(|&other| other != gaining) {
                for (from, less, lost) in near(giving).filter(|&(_, _, saved)| saved <= 0.0) {
                    if more + less <= left && saved + lost > best.0 * (1.0 + 1e-12) {
                        best = (saved + lost, [(gaining, to), (giving, from)]);
                    }
                }
            }
        }
    }
    let found = best.0 > 0.0;
    best.1.into_iter().filter(|_| found).for_each(|(tensor, at)| chosen[tensor] = at);
    found
}

/// Spends the remaining bytes, each time on the candidate that saves the most loss per byte.
fn spend(tensors: &[Cow<[Candidate]>], chosen: &mut [usize], most: f64) {
    let mut left = most - tensors.iter().zip(&*chosen).map(|(choices, &at)| choices[at].bytes).sum::<f64>();
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (tensor, choices) in tensors.iter().enumerate() {
            let now = choices[chosen[tensor]];
            for (at, choice) in choices.iter().enumerate() {
                let (more, saved) = (choice.bytes - now.bytes, now.loss - choice.loss);
                if saved > 0.0 && more <= left {
                    let worth = if more > 0.0 { saved / more } else { f64::INFINITY };
                    if best.is_none_or(|(most, ..)| worth > most) {
                        best = Some((worth, tensor, at));
                    }
                }
            }
        }
        let Some((_, tensor, at)) = best else { return };
        left -= tensors[tensor][at].bytes - tensors[tensor][chosen[tensor]].bytes;
        chosen[tensor] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::candidate::KernelKind;
    use proptest::prelude::*;

    /// Returns the least loss within a whole number of bytes, by dynamic programming.
    fn exact(tensors: &[Vec<Candidate>], most: usize) -> f64 {
        let mut least = vec![0.0; most + 1];
        for choices in tensors {
            let with = |n: usize| {
                let fits = choices.iter().filter(|choice| choice.bytes as usize <= n);
                fits.map(|choice| choice.loss + least[n - choice.bytes as usize]).fold(f64::INFINITY, f64::min)
            };
            least = (0..=most).map(with).collect();
        }
        least[most]
    }

    /// Tensors of some thousand weights, with step sizes 1/32 octave apart: bytes fall with the logarithm of
    /// the step, losses rise with its square.
    fn tensors(sizes: &[(f64, f64)]) -> Vec<Vec<Candidate>> {
        let choice = |(size, sensitivity): (f64, f64), place: i32| {
            let step = (f64::from(place) / 32.0).exp2();
            let bits = (1.0 + 1.0 / (step * step)).log2() / 2.0;
            let kernel = KernelKind::default();
            Candidate { bytes: (size * bits / 8.0).round(), loss: sensitivity * step * step, kernel }
        };
        sizes.iter().map(|&of| (-192..64).map(|place| choice(of, place)).collect()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_loss_is_within_one_percent_of_the_optimum(
            sizes in prop::collection::vec((1000.0_f64..6000.0, 1e-3_f64..10.0), 4..9), share in 0.05_f64..0.9,
        ) {
            let tensors = tensors(&sizes);
            let bytes = |pick: fn(f64, f64) -> f64| -> f64 {
                tensors.iter().map(|choices| choices.iter().map(|choice| choice.bytes).reduce(pick).unwrap()).sum()
            };
            let (least, most) = (bytes(f64::min), bytes(f64::max));
            let most = (least + share * (most - least)).floor();
            let chosen = allocate(&tensors, &[], most).unwrap();
            let of = |value: fn(&Candidate) -> f64| -> f64 { tensors.iter().zip(&chosen).map(|(choices, &at)| value(&choices[at])).sum() };
            prop_assert!(of(|choice| choice.bytes) <= most);
            let (loss, best) = (of(|choice| choice.loss), exact(&tensors, most as usize));
            prop_assert!(loss <= 1.01 * best, "{loss} of {best}");
        }
    }

    #[test]
    fn too_few_bytes_give_none_and_many_give_the_least_loss() {
        let tensors = tensors(&[(500.0, 1.0), (900.0, 0.1)]);
        assert_eq!(allocate(&tensors, &[], 1.0), None);
        assert_eq!(allocate(&tensors, &[], 1e9), Some(vec![0, 0]));
        assert_eq!(allocate(&[], &[], 0.0), Some(vec![]));
    }

    const NARROW: KernelKind = KernelKind { is_narrow: true, rounds_inputs: false };
    const WIDE: KernelKind = KernelKind { is_narrow: false, rounds_inputs: true };

    fn candidate(bytes: f64, loss: f64, kernel: KernelKind) -> Candidate {
        Candidate { bytes, loss, kernel }
    }

    /// Tensors of 100 weights. The wide candidates are several pruned ones and one that is not pruned; there
    /// are narrow candidates too.
    fn layers(sensitivities: &[f64]) -> Vec<Vec<Candidate>> {
        let choices = |&by: &f64| {
            vec![
                candidate(100.0, by, WIDE),
                candidate(70.0, 6.0 * by, WIDE),
                candidate(90.0, 5.5 * by, WIDE), // Never optimal for any multiplier.
                candidate(50.0, 20.0 * by, NARROW),
            ]
        };
        sensitivities.iter().map(choices).collect()
    }

    fn least(tensors: &[Vec<Candidate>], fits: impl Fn(&[usize]) -> bool, most: f64) -> f64 {
        let n = tensors[0].len();
        let digits = |code: usize| (0..tensors.len() as u32).map(move |i| code / n.pow(i) % n).collect::<Vec<usize>>();
        let all = (0..n.pow(tensors.len() as u32)).map(digits);
        let sum = |at: &[usize], of: fn(&Candidate) -> f64| -> f64 {
            tensors.iter().zip(at).map(|(c, &at)| of(&c[at])).sum()
        };
        let fit = all.filter(|at| fits(at) && sum(at, |c| c.bytes) <= most);
        fit.map(|at| sum(&at, |c| c.loss)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_group_has_one_kernel_and_the_least_loss_for_it() {
        let tensors = layers(&[1.0, 0.1, 3.0, 0.5]);
        let groups = [vec![0, 1, 2]];
        for most in [200.0, 240.0, 290.0, 300.0, 330.0, 370.0, 400.0] {
            let chosen = allocate(&tensors, &groups, most).unwrap();
            let kernel = |at: &[usize], tensor: usize| tensors[tensor][at[tensor]].kernel;
            let is_one = |at: &[usize]| (1..3).all(|tensor| kernel(at, tensor) == kernel(at, 0));
            assert!(is_one(&chosen), "{most}: {chosen:?}");
            let loss: f64 = tensors.iter().zip(&chosen).map(|(choices, &at)| choices[at].loss).sum();
            let best = least(&tensors, is_one, most);
            assert!(loss <= 1.3 * best, "{most}: {loss} of {best}");
        }
        // Without the group, the least sensitive tensor would be narrow.
        let alone = allocate(&tensors, &[], 350.0).unwrap();
        assert!(tensors[1][alone[1]].kernel == NARROW && tensors[0][alone[0]].kernel == WIDE, "{alone:?}");
    }

    #[test]
    fn a_group_with_one_or_no_common_kernel_is_split() {
        let wide: Vec<Vec<Candidate>> = layers(&[1.0, 0.1]).into_iter().map(|choices| choices[..3].to_vec()).collect();
        let mut apart = layers(&[1.0, 0.1]);
        apart[0].truncate(3);
        apart[1].drain(..3);
        for tensors in [wide, apart] {
            for most in [125.0, 140.0, 170.0, 200.0] {
                assert_eq!(allocate(&tensors, &[vec![0, 1]], most), allocate(&tensors, &[], most), "{most}");
            }
        }
    }
}
