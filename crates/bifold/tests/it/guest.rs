// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `doctor`, and what guests need.

use crate::command::bifold;

#[test]
fn doctor_tells_the_same_in_words_and_in_json() {
    let (words, json) = (bifold("doctor"), bifold("doctor --format json"));
    assert_eq!(words.status, json.status);
    let v: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(v["schema"], "bifold.doctor/1");
    assert_eq!(words.status, if v["ok"] == true { 0 } else { 77 });
    for check in v["checks"].as_array().unwrap() {
        assert!(words.stdout.contains(check["name"].as_str().unwrap()));
    }
}
