// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages on screens of several sizes, of a host made of files, and what keys do.

use super::app::{App, Page};
use super::view::{TerminalStyle, draw};
use crate::full::fake_host::Tree;
use crate::full::vms;
use bifold_host::{Backing, VmId};
use bifold_live::{Figures, HardwareSource, Watch};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::Modifier;
use std::time::Duration;

mod any;

const SECOND: Duration = Duration::from_secs(1);

fn id(thread: u32) -> VmId {
    VmId { thread, fd: 7 }
}

/// The numbers of a VM that a test changes.
fn set(tree: &Tree, pid: u32, mode: &str, exits: u64, ran_ns: u64) {
    let dir = format!("debug/kvm/{pid}-7");
    tree.paging(pid, mode, "none");
    tree.write(&format!("{dir}/exits"), &format!("{exits}\n"));
    tree.write(&format!("{dir}/pf_taken"), &format!("{}\n", exits / 4));
    tree.write(&format!("{dir}/halt_wait_ns"), &format!("{}\n", 300_000 * exits));
    tree.write(&format!("{dir}/pages_4k"), "5120\n");
    tree.write(&format!("{dir}/vcpu0/pid"), &format!("{}\n", pid + 1));
    tree.write(&format!("proc/{pid}/task/{}/schedstat", pid + 1), &format!("{ran_ns} {} 1\n", ran_ns / 50));
}

/// A host with three VMs.
fn host() -> Tree {
    let tree = Tree::new();
    tree.write("sys/module/kvm_amd/parameters/npt", "Y\n");
    tree.write("sys/module/kvm/parameters/paging_mode", "nested\n");
    for (pid, name) in [(100, "web"), (200, "the db\u{1b}[2J with a name that is too long"), (300, "idle")] {
        tree.vm(pid, name, 0, "");
        set(&tree, pid, "nested", 1000, 5_000_000_000);
    }
    tree
}

/// A host that was watched for four seconds, with one VM in shadow paging and one being switched.
fn watched(tree: &Tree) -> (Watch, App) {
    let mut watch = Watch::new(tree.host(), HardwareSource::None).unwrap();
    let mut app = App::new(SECOND);
    for second in 0..5u64 {
        set(tree, 100, "nested", 8210 * second * second, 370_000_000 * second);
        set(
            tree,
            200,
            if second == 4 { "shadow -> nested" } else { "shadow" },
            1_234_567 * second,
            990_000_000 * second,
        );
        set(tree, 300, "nested", 0, 0);
        tick(&mut watch, &mut app, second);
    }
    // What a host made of files cannot tell.
    let measured = Figures {
        hypervisor: Some(0.043),
        walks: Some(0.187),
        ipc: Some(0.82),
        cycles: Some(3.1e9),
        misses: Some(2.75e6),
        ..Figures::default()
    };
    let web = app.vms.get_mut(&id(100)).unwrap();
    let known = |f: Figures| Figures {
        ran: f.ran,
        waited: f.waited,
        exits: f.exits,
        page_faults: f.page_faults,
        ..measured
    };
    web.figures = known(web.figures);
    web.each_vcpu.iter_mut().for_each(|v| v.figures = known(v.figures));
    web.history.iter_mut().for_each(|m| m.figures = known(m.figures));
    web.backing =
        Some(Backing { small: 3 << 28, huge: 9 << 28, giant: 0, nodes: [(0, 2 << 30), (1, 1 << 30)].into() });
    (watch, app)
}

fn tick(watch: &mut Watch, app: &mut App, second: u64) {
    let tick = watch.tick(&|| Duration::from_secs(second));
    app.update(watch, &tick, &[]);
    app.notes = vms::notes(watch, None, &[]);
}

fn press(app: &mut App, code: KeyCode) {
    app.key(KeyEvent::new(code, KeyModifiers::NONE));
}

fn type_in(app: &mut App, text: &str) {
    text.chars().for_each(|c| press(app, KeyCode::Char(c)));
}

fn screen(app: &mut App, width: u16, height: u16, look: TerminalStyle) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app, look)).unwrap();
    terminal
}

/// The screen's text.
fn shown(app: &mut App, width: u16, height: u16) -> String {
    screen(app, width, height, TerminalStyle { ascii: false, colors: true }).backend().to_string()
}

#[test]
fn the_list_has_a_line_for_each_vm() {
    let tree = host();
    let (_watch, mut app) = watched(&tree);
    insta::assert_snapshot!("list_80x24", shown(&mut app, 80, 24));
    insta::assert_snapshot!("list_120x30", shown(&mut app, 120, 30));
    insta::assert_snapshot!("list_40x6", shown(&mut app, 40, 6));
}

#[test]
fn the_page_of_a_vm_has_vcpus_statistics_memory_and_history() {
    let tree = host();
    let (_watch, mut app) = watched(&tree);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.page, Page::Vm(id(100)));
    insta::assert_snapshot!("vm_80x24", shown(&mut app, 80, 24));
    insta::assert_snapshot!("vm_60x40", shown(&mut app, 60, 40));
    let ascii = screen(&mut app, 80, 24, TerminalStyle { ascii: true, colors: false });
    assert!(ascii.backend().buffer().content().iter().all(|c| c.symbol().is_ascii()));
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Up);
    press(&mut app, KeyCode::Enter);
    insta::assert_snapshot!("vm_switching", shown(&mut app, 120, 30));
}

#[test]
fn a_change_that_kvm_would_refuse_leaves_room_for_the_next_best() {
    let tree = host();
    let (_watch, mut app) = watched(&tree);
    let advice = ["shadow paging, but the VM cannot be switched", "huge pages in the host"];
    app.vms.get_mut(&id(200)).unwrap().advice = advice.map(String::from).into();
    press(&mut app, KeyCode::Enter);
    let screen = shown(&mut app, 80, 24);
    assert!(advice.iter().all(|text| screen.contains(text)), "{screen}");
}

#[test]
fn a_filter_is_typed_kept_and_cleared() {
    let tree = host();
    let (_watch, mut app) = watched(&tree);
    type_in(&mut app, "/WEx");
    press(&mut app, KeyCode::Backspace);
    insta::assert_snapshot!("filter_80x10", shown(&mut app, 80, 10));
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.visible(), app.selected), (vec![id(100)], Some(id(100))));
    type_in(&mut app, "/q?");
    assert!(!app.done && !app.help, "keys are text");
    assert_eq!((app.visible(), app.selected), (vec![], None));
    assert!(shown(&mut app, 80, 10).contains("no VM has WEq? in its name"));
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.visible().len(), app.typing, app.done), (3, false, false));
    type_in(&mut app, "/web");
    press(&mut app, KeyCode::Enter);
    press(&mut app, KeyCode::Esc);
    assert!(app.filter.is_empty() && !app.done, "the first Esc clears");
    press(&mut app, KeyCode::Esc);
    assert!(app.done);
}

#[test]
fn an_empty_host_and_the_help_are_pages_too() {
    let tree = Tree::new();
    tree.write("sys/module/kvm_amd/parameters/npt", "Y\n");
    tree.write("sys/module/kvm/parameters/paging_mode", "nested\n");
    std::fs::create_dir_all(tree.host().debug.join("kvm")).unwrap();
    let mut watch = Watch::new(tree.host(), HardwareSource::None).unwrap();
    let mut app = App::new(SECOND);
    tick(&mut watch, &mut app, 0);
    insta::assert_snapshot!("empty_80x12", shown(&mut app, 80, 12));
    type_in(&mut app, "jkGrs<");
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.page, app.selected), (Page::List, None));
    type_in(&mut app, "h");
    insta::assert_snapshot!("help_80x24", shown(&mut app, 80, 24));
    type_in(&mut app, "q");
    assert!(!app.help && !app.done);
}

#[test]
fn the_selection_stays_on_its_vm_until_that_ends() {
    let tree = host();
    let (mut watch, mut app) = watched(&tree);
    assert_eq!(app.visible(), [id(200), id(100), id(300)]);
    assert_eq!(app.selected, Some(id(200)), "the first line, until a key moves the selection");
    press(&mut app, KeyCode::Down);
    assert_eq!((app.selected, app.place()), (Some(id(100)), 1));
    type_in(&mut app, "r");
    assert_eq!((app.visible(), app.selected), (vec![id(300), id(100), id(200)], Some(id(100))));
    set(&tree, 100, "nested", 0, 9_000_000_000);
    tick(&mut watch, &mut app, 5);
    assert_eq!((app.selected, app.place()), (Some(id(100)), 2));
    let lines = screen(&mut app, 80, 24, TerminalStyle::default());
    let reversed = |y| lines.backend().buffer()[(5, y)].modifier.contains(Modifier::REVERSED);
    assert_eq!([3, 4, 5].map(reversed), [false, false, true]);
    press(&mut app, KeyCode::Enter);
    std::fs::remove_dir_all(tree.host().debug.join("kvm/100-7")).unwrap();
    tick(&mut watch, &mut app, 6);
    assert_eq!((app.page, app.vms.len()), (Page::List, 2), "its page closes");
    assert_eq!(app.place(), 1, "the last one takes its place");
}

#[test]
fn unknown_figures_are_last_and_names_are_in_the_order_of_the_alphabet() {
    let tree = host();
    let (_watch, mut app) = watched(&tree);
    type_in(&mut app, ">>>>>");
    assert_eq!(super::column::COLUMNS[app.sort].name, "walks");
    let by_walks = [id(100), id(300), id(200)];
    assert_eq!(app.visible(), by_walks);
    type_in(&mut app, "r");
    assert_eq!(app.visible(), by_walks);
    type_in(&mut app, "ssss");
    assert_eq!(app.sort, 0);
    assert_eq!(app.visible(), [id(100), id(200), id(300)], "reversed names");
    type_in(&mut app, "<r");
    assert_eq!(super::column::COLUMNS[app.sort].name, "switches");
}

#[test]
fn intervals_get_longer_and_shorter_and_space_pauses() {
    let mut app = App::new(Duration::from_millis(1500));
    type_in(&mut app, "+");
    assert_eq!(app.interval, Duration::from_secs(2));
    type_in(&mut app, "---");
    assert_eq!(app.interval, Duration::from_millis(200));
    type_in(&mut app, "-----");
    assert_eq!(app.interval, Duration::from_millis(100));
    type_in(&mut app, &"+".repeat(20));
    assert_eq!(app.interval, Duration::from_secs(60));
    type_in(&mut app, " ");
    assert!(app.paused && shown(&mut app, 80, 5).contains(" paused "));
    type_in(&mut app, " ");
    assert!(!app.paused);
}

#[test]
fn control_c_ends_everywhere_and_a_released_key_does_nothing() {
    for before in ["", "?", "/abc"] {
        let mut app = App::new(SECOND);
        type_in(&mut app, before);
        let key = KeyEvent::new_with_kind(KeyCode::Esc, KeyModifiers::NONE, KeyEventKind::Release);
        app.key(key);
        assert!(!app.done);
        app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(app.done, "{before}");
    }
}

#[test]
fn without_colors_no_cell_has_one() {
    let tree = host();
    let (_watch, mut app) = watched(&tree);
    let of = |app: &mut App, colors| {
        let terminal = screen(app, 80, 24, TerminalStyle { ascii: false, colors });
        let colored = |c: &ratatui::buffer::Cell| c.fg != ratatui::style::Color::Reset;
        terminal.backend().buffer().content().iter().any(colored)
    };
    assert_eq!((of(&mut app, true), of(&mut app, false)), (true, false));
    press(&mut app, KeyCode::Enter);
    assert_eq!((of(&mut app, true), of(&mut app, false)), (true, false));
}
