// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command as a user meets it: its words, its files, its exit status.
//!
//! Goldens hold exact numbers. Regenerate them with
//! `INSTA_UPDATE=always cargo test -p bifold -p bifold-report`, then read the diff.

mod bad_input;
mod baseline;
mod cache;
mod ci;
mod command;
mod compact;
mod daemon;
mod diff;
mod docs;
mod export;
mod formats;
mod goldens;
mod guest;
mod hook;
mod import;
mod install;
mod ksm;
mod links;
mod long;
mod noise;
mod place_check;
mod place_plan;
mod places;
mod policy;
mod profile;
mod reclaim;
mod reclaim_cost;
mod reclaim_daemon;
mod reclaim_guest;
mod reclaim_kills;
mod reclaim_plan;
mod reclaim_qemu;
mod reclaim_run;
mod recordings;
mod reference;
mod release;
mod runs;
mod share;
mod share_core;
mod share_run;
mod states;
mod stopping;
mod streams;
mod sweep;
mod tune;
mod verdict;
