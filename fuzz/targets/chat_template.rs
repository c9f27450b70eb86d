//! Fuzzes chat templates on a conversation of three messages.
#![no_main]

use briquette_models::chat::{ChatTemplate, Message};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let messages = [("system", "Be kind."), ("user", " Hello "), ("assistant", "Hi")];
    let messages = messages.map(|(role, content)| Message::new(role, content));
    if let Err(error) = ChatTemplate::new(input, "<s>", "</s>").render(&messages) {
        assert!(error.exit_code() == 4 && error.to_string().lines().count() == 1, "{error}");
    }
});
