//! Log-mel spectrograms of sounds, as Whisper reads them.

use super::read_bytes;
use briquette_core::{Error, Result};
use std::f64::consts::TAU;
use std::path::Path;

/// How a model reads sounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoundInput {
    /// Bands of the spectrogram.
    pub n_mels: usize,
    /// Frames of the spectrogram; shorter sounds are followed by silence.
    pub n_frames: usize,
    /// Samples of a frame.
    pub n_fft: usize,
    /// Samples between the starts of two frames.
    pub hop: usize,
    /// Samples per second.
    pub rate: u32,
}

impl SoundInput {
    /// Returns Whisper's settings: frames of 25 ms every 10 ms, at 16 kHz.
    pub fn new(n_mels: usize, n_frames: usize) -> Self {
        Self { n_mels, n_frames, n_fft: 400, hop: 160, rate: 16_000 }
    }

    /// Predicts the bytes that computing the features of a sound takes at most.
    ///
    /// A sample takes up to 2 bytes in the file and 12 while samples are collected; a value of the spectrogram takes 8, and 4
    /// as a feature.
    pub fn features_bytes(&self) -> u64 {
        (14 * self.n_frames * self.hop + 12 * self.n_mels * self.n_frames) as u64
    }

    /// Returns the features of a WAV file, `[bands, frames]`.
    ///
    /// # Errors
    /// - Input: the file is damaged, is too long, or has another rate or several channels.
    /// - Io: the file cannot be read.
    pub fn features(&self, path: &Path) -> Result<Vec<f32>> {
        let bytes = read_bytes(path)?;
        let samples = self.samples(&bytes).map_err(|error| error.at(path.display()))?;
        Ok(self.of_samples(&samples))
    }

    /// Reads the samples of a WAV file, from -1 to 1.
    fn samples(&self, file: &[u8]) -> Result<Vec<f32>> {
        let bad =
            |error: hound::Error| Error::input(format!("it is no WAV file that can be read: {error}; convert it"));
        let mut reader = hound::WavReader::new(file).map_err(bad)?;
        let spec = reader.spec();
        if spec.channels != 1 || spec.sample_rate != self.rate {
            let message = format!(
                "found {} channels of {} Hz, expected 1 of {} Hz; convert it with ffmpeg -ac 1 -ar {3}",
                spec.channels, spec.sample_rate, self.rate, self.rate
            );
            return Err(Error::input(message));
        }
        let most = self.n_frames * self.hop;
        if reader.duration() as usize > most {
            let seconds = |n: usize| n as f64 / f64::from(self.rate);
            let (found, most) = (seconds(reader.duration() as usize), seconds(most));
            return Err(Error::input(format!("found {found:.1} s of sound, expected at most {most:.0} s; cut it")));
        }
        let samples: std::result::Result<Vec<f32>, hound::Error> = match spec.sample_format {
            hound::SampleFormat::Float => reader.samples::<f32>().collect(),
            hound::SampleFormat::Int => {
                let scale = 1.0 / (1_i64 << (spec.bits_per_sample - 1)) as f32;
                reader.samples::<i32>().map(|sample| sample.map(|sample| sample as f32 * scale)).collect()
            }
        };
        let samples = samples.map_err(bad)?;
        match samples.iter().all(|sample| sample.is_finite()) {
            true => Ok(samples),
            false => Err(Error::input("found a sample that is not finite; convert it again")),
        }
    }

    /// Returns the features `[bands, frames]` of samples, which are cut to the frames or followed by silence.
    ///
    /// A frame `t` is centered on sample `t · hop`; samples before the first and after the last are mirrored. With a Hann
    /// window, its power spectrum `|DFT|²` is weighed by triangular filters: `m`. The features are
    /// `(max(l, max(l) - 8) + 4) / 4` for `l = log10(max(m, 1e-10))`, where the inner maximum is over all frames.
    ///
    /// Source: transformers' `WhisperFeatureExtractor`.
    pub fn of_samples(&self, samples: &[f32]) -> Vec<f32> {
        let (n_bins, length) = (self.n_fft / 2 + 1, self.n_frames * self.hop);
        let filters = mel_filters(self.n_mels, n_bins, self.rate);
        let spectrum = PowerSpectrum::new(self.n_fft);
        let sample = |at: i64| {
            let last = length as i64 - 1;
            let mirrored = if at < 0 {
                -at
            } else if at > last {
                2 * last - at
            } else {
                at
            };
            usize::try_from(mirrored).ok().and_then(|at| samples.get(at)).map_or(0.0, |sample| f64::from(*sample))
        };
        let mut found = vec![0.0_f64; self.n_mels * self.n_frames];
        for frame in 0..self.n_frames {
            let first = (frame * self.hop) as i64 - (self.n_fft / 2) as i64;
            let frame_of: Vec<f64> = (0..self.n_fft as i64).map(|at| sample(first + at)).collect();
            let power = spectrum.of(&frame_of);
            for (mel, filter) in filters.iter().enumerate() {
                let energy: f64 = filter.iter().zip(&power).map(|(weight, power)| weight * power).sum();
                found[mel * self.n_frames + frame] = energy.max(1e-10).log10();
            }
        }
        let largest = found.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        found.into_iter().map(|value| ((value.max(largest - 8.0) + 4.0) / 4.0) as f32).collect()
    }
}

/// The power spectrum of frames with a Hann window.
struct PowerSpectrum {
    window: Vec<f64>,
    /// `cos(2π i / n)`.
    cosines: Vec<f64>,
}

impl PowerSpectrum {
    fn new(n: usize) -> Self {
        let angle = |at: usize| TAU * at as f64 / n as f64;
        let cosines: Vec<f64> = (0..n).map(|at| angle(at).cos()).collect();
        let window = cosines.iter().map(|cosine| 0.5 - 0.5 * cosine).collect();
        Self { window, cosines }
    }

    /// Returns `|Σ x[i] w[i] e^(-2π j i k / n)|²` for each `k` up to half of `n`.
    fn of(&self, frame: &[f64]) -> Vec<f64> {
        let n = frame.len();
        let weighed: Vec<f64> = frame.iter().zip(&self.window).map(|(x, weight)| x * weight).collect();
        if weighed.iter().all(|x| *x == 0.0) {
            return vec![0.0; n / 2 + 1];
        }
        let bin = |k: usize| {
            let (mut re, mut im, mut at) = (0.0, 0.0, 0);
            for x in &weighed {
                re += x * self.cosines[at];
                // sin(a) = cos(a - π/2); n is a multiple of 4 in every model.
                im += x * self.cosines[(at + n - n / 4) % n];
                at = (at + k) % n;
            }
            re * re + im * im
        };
        (0..=n / 2).map(bin).collect()
    }
}

/// Returns triangular filters of equal area over `n_bins` frequencies up to half of the rate, one row for each band.
///
/// Bands have equal widths on Slaney's mel scale: linear up to 1000 Hz, `3 f / 200`, then logarithmic with 27 bands for each
/// factor of 6.4.
fn mel_filters(n_mels: usize, n_bins: usize, rate: u32) -> Vec<Vec<f64>> {
    let step = 6.4_f64.ln() / 27.0;
    let mel_of = |hz: f64| if hz < 1000.0 { 3.0 * hz / 200.0 } else { 15.0 + (hz / 1000.0).ln() / step };
    let hz_of = |mel: f64| if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * ((mel - 15.0) * step).exp() };
    let top = f64::from(rate) / 2.0;
    let edge = |at: usize| hz_of(mel_of(top) * at as f64 / (n_mels + 1) as f64);
    let frequency = |bin: usize| top * bin as f64 / (n_bins - 1) as f64;
    let filter = |mel: usize| {
        let [low, middle, high] = [edge(mel), edge(mel + 1), edge(mel + 2)];
        let weight = |bin: usize| {
            let (rising, falling) =
                ((frequency(bin) - low) / (middle - low), (high - frequency(bin)) / (high - middle));
            rising.min(falling).max(0.0) * 2.0 / (high - low)
        };
        (0..n_bins).map(weight).collect()
    };
    (0..n_mels).map(filter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_loudest_in_its_band() {
        let input = SoundInput::new(20, 20);
        let tone: Vec<f32> = (0..3200).map(|at| (TAU * 1000.0 * f64::from(at) / 16_000.0).sin() as f32).collect();
        let found = input.of_samples(&tone);
        let at = |mel: usize| found[mel * 20 + 10];
        let loudest = (0..20).max_by(|a, b| at(*a).total_cmp(&at(*b))).unwrap();
        let filters = mel_filters(20, 201, 16_000);
        let expected = (0..20).max_by(|a, b| filters[*a][25].total_cmp(&filters[*b][25])).unwrap();
        assert_eq!(loudest, expected);
        let spread = found.iter().copied().fold(f32::INFINITY, f32::min);
        assert!((found.iter().copied().fold(f32::NEG_INFINITY, f32::max) - spread - 2.0).abs() < 1e-6);
    }

    #[test]
    fn files_that_are_no_sounds_of_the_model_are_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.wav");
        let write = |channels, sample_rate, n: usize| {
            let spec =
                hound::WavSpec { channels, sample_rate, bits_per_sample: 16, sample_format: hound::SampleFormat::Int };
            let mut writer = hound::WavWriter::create(&path, spec).unwrap();
            (0..n).for_each(|at| writer.write_sample((at % 100) as i16).unwrap());
            writer.finalize().unwrap();
        };
        let input = SoundInput::new(4, 10);
        let error = || input.features(&path).unwrap_err();
        write(1, 44_100, 100);
        assert!(error().message.contains("found 1 channels of 44100 Hz, expected 1 of 16000 Hz"), "{}", error());
        write(2, 16_000, 100);
        assert!(error().message.contains("found 2 channels"), "{}", error());
        write(1, 16_000, 1601);
        assert!(error().message.contains("found 0.1 s of sound, expected at most 0 s"), "{}", error());
        write(1, 16_000, 1600);
        assert_eq!(input.features(&path).unwrap().len(), 40);
        let whole = std::fs::read(&path).unwrap();
        for n in [0, 4, 20, 43] {
            std::fs::write(&path, &whole[..n]).unwrap();
            assert_eq!(error().exit_code(), 4, "{}", error());
        }
    }
}
