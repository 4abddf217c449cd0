// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's answers as JSON.

use bifold_daemon::control::Answer;
use bifold_daemon::{Explanation, STATUS_SCHEMA, Status};
use bifold_report::schema::schema;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// Name and version of what `explain` writes.
const EXPLANATION: &str = "bifold.daemon-explanation/1";
/// Name and version of what commands to the daemon write.
const ANSWER: &str = "bifold.daemon-answer/1";

/// What `bifold ctl explain VM --format json` writes: a VM's state and its last events.
#[derive(Serialize, JsonSchema)]
struct Explained<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    #[serde(flatten)]
    about: &'a Explanation,
}

/// What `bifold ctl hold`, `release`, `undo` and `reload` write with `--format json`: what the daemon did.
#[derive(Serialize, JsonSchema)]
struct Done<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// What the daemon did, in sentences; absent if it refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<&'a [String]>,
    /// Why the daemon did nothing; absent if it did not refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
}

/// The schemas of all answers.
pub fn schemas() -> [Value; 3] {
    [schema::<Status>(STATUS_SCHEMA), schema::<Explained>(EXPLANATION), schema::<Done>(ANSWER)]
}

/// An answer as a document.
pub fn answer(answer: &Answer) -> serde_json::Result<String> {
    let done = |done, refused| serde_json::to_string_pretty(&Done { schema: ANSWER, done, refused });
    let text = match answer {
        Answer::Status(status) => serde_json::to_string_pretty(status),
        Answer::Explained(about) => serde_json::to_string_pretty(&Explained { schema: EXPLANATION, about }),
        Answer::Done(told) => done(Some(told), None),
        Answer::Refused(why) => done(None, Some(why)),
    };
    text.map(|t| t + "\n")
}
