//! Refuses settings that have no effect on the data.

use super::DataSpec;
use crate::ModelTask;
use briquette_core::{Error, Remedy, Result};
use briquette_formats::presence;

/// Kinds of data with different settings.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DataKind {
    Sentences,
    Document,
    Pairs,
    Folder,
    Array,
}

impl DataSpec {
    /// Checks that every setting has an effect on the data of this task.
    ///
    /// # Errors
    /// Config, with the setting and its purpose.
    pub(super) fn check_settings(&self, task: ModelTask) -> Result<()> {
        use DataKind::{Array, Document, Folder, Pairs, Sentences};
        let (kind, is) = match (task, presence::is_directory(&self.path)?) {
            (ModelTask::Encoder, _) => (Sentences, "this model takes text line by line"),
            (ModelTask::Decoder, _) => (Document, "this model takes a text"),
            (ModelTask::EncoderDecoder, _) => (Pairs, "this model takes pairs of a source and a target"),
            (ModelTask::Classifier, true) => (Folder, "the data is a folder of images"),
            (ModelTask::Classifier, false) => (Array, "the data is an array"),
        };
        let images: &[DataKind] = &[Folder, Array];
        let settings: [(&'static str, bool, &[DataKind], &str); 8] = [
            ("data.labels", self.labels.is_some(), &[Array], "gives the labels of an array"),
            ("data.max_length", self.max_length.is_some(), &[Sentences, Document, Pairs], "cuts texts"),
            ("data.stride", self.stride.is_some(), &[Document], "lets the windows of a decoder's text overlap"),
            ("data.size", self.size.is_some(), &[Folder], "scales the images of a folder"),
            ("data.crop", self.crop.is_some(), &[Folder], "cuts the images of a folder"),
            // `Images::tiles` refuses tiles of arrays, with a more specific message.
            ("data.tile", self.tile.is_some(), images, "cuts images into tiles"),
            ("data.normalize", self.normalize.is_some(), images, "shifts and divides the channels of images"),
            ("data.strict", self.strict, &[Folder], "stops at an image of a folder that does not decode"),
        ];
        match settings.iter().find(|(_, is_set, goes_with, _)| *is_set && !goes_with.contains(&kind)) {
            Some((name, _, _, does)) => Err(Error::config(format!("it {does}, but {is}; leave it out"))
                .at(name)
                .with_remedy(Remedy::SetKey(name))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Normalize;
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn settings_without_effect_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = DataSpec { path: dir.path().to_path_buf(), ..DataSpec::default() };
        let file = DataSpec { path: dir.path().join("x.npy"), ..DataSpec::default() };
        let labels = Some(PathBuf::from("/nonexistent"));
        let normalize = Some(Normalize { mean: vec![0.0], std: vec![1.0] });
        let cases = [
            (DataSpec { labels: labels.clone(), ..folder.clone() }, "C", "data.labels"),
            (DataSpec { labels: labels.clone(), ..file.clone() }, "E", "data.labels"),
            (DataSpec { labels, ..file.clone() }, "C", ""),
            (DataSpec { max_length: Some(3), ..folder.clone() }, "C", "data.max_length"),
            (DataSpec { max_length: Some(3), ..file.clone() }, "D", ""),
            (DataSpec { stride: Some(3), ..file.clone() }, "D", ""),
            (DataSpec { stride: Some(3), ..file.clone() }, "E", "data.stride"),
            (DataSpec { max_length: Some(3), ..file.clone() }, "P", ""),
            (DataSpec { stride: Some(3), ..file.clone() }, "P", "data.stride"),
            (DataSpec { size: Some(3), ..file.clone() }, "C", "data.size"),
            (DataSpec { size: Some(3), crop: Some([3, 3]), strict: true, ..folder.clone() }, "C", ""),
            (DataSpec { crop: Some([3, 3]), ..file.clone() }, "D", "data.crop"),
            (DataSpec { tile: Some(3), ..file.clone() }, "E", "data.tile"),
            (DataSpec { normalize: normalize.clone(), ..file.clone() }, "E", "data.normalize"),
            (DataSpec { normalize, ..file.clone() }, "C", ""),
            (DataSpec { strict: true, ..file }, "C", "data.strict"),
        ];
        for (spec, task, name) in cases {
            let task = match task {
                "C" => ModelTask::Classifier,
                "D" => ModelTask::Decoder,
                "P" => ModelTask::EncoderDecoder,
                _ => ModelTask::Encoder,
            };
            match spec.check_settings(task) {
                Ok(()) => assert_eq!(name, "", "{spec:?}"),
                Err(error) => {
                    assert!(!name.is_empty() && error.message.starts_with(&format!("{name}: ")), "{error}");
                    assert_eq!(error.remedy, Some(Remedy::SetKey(name)));
                    assert_eq!(error.exit_code(), 2);
                }
            }
        }
    }
}
