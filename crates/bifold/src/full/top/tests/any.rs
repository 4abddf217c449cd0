// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any VMs, keys and sizes of the screen.

use super::{SECOND, id, press, screen};
use crate::full::top::app::{App, HISTORY, Moment, Vcpu, Vm};
use crate::full::top::view::TerminalStyle;
use bifold_host::Mode;
use bifold_host::{Backing, State, Statistic};
use bifold_live::Figures;
use proptest::prelude::*;
use ratatui::crossterm::event::KeyCode;

/// Any VM, with figures of any size.
fn vm() -> impl Strategy<Value = Vm> {
    let number = || proptest::option::of(prop_oneof![Just(0.0), 0.0..2.0, 0.0..1e12, Just(f64::MAX)]);
    let figures = (number(), number(), number(), number()).prop_map(|(ran, exits, walks, ipc)| Figures {
        ran,
        exits,
        walks,
        ipc,
        cycles: exits,
        ..Figures::default()
    });
    let state = prop_oneof![
        Just(None),
        Just(Some(State::In(Mode::Nested))),
        Just(Some(State::In(Mode::Shadow))),
        Just(Some(State::To(Mode::Shadow)))
    ];
    let sizes = (any::<u64>(), any::<u64>());
    ("[a-c世é \u{301}]{0,30}", state, figures, 0..90usize, 0..150usize, sizes).prop_map(
        |(name, state, figures, vcpus, past, (small, huge))| {
            let mut vm = Vm { name, state, figures, vcpus, seconds: 0.5, ..Vm::default() };
            vm.backing = Some(Backing { small, huge, giant: 7, nodes: [(0, small)].into() });
            vm.statistics.set(Statistic::Exits, small);
            vm.statistics.set(Statistic::HaltWaitNs, huge);
            vm.each_vcpu = (0..vcpus as u32).map(|n| Vcpu { number: n, thread: n, figures }).collect();
            let moment = || Moment { figures, mode: None, switches: Some(1) };
            vm.history = std::iter::repeat_with(moment).take(past.min(HISTORY)).collect();
            vm
        },
    )
}

fn key() -> impl Strategy<Value = KeyCode> {
    use KeyCode::*;
    let named = vec![Up, Down, Enter, Esc, Backspace, PageUp, PageDown, Home, End, Left, F(1), Tab];
    let chars = proptest::char::range(' ', '~').prop_map(Char);
    prop_oneof![
        proptest::sample::select(named),
        proptest::sample::select(vec![Char('j'), Char('/'), Char('h')]),
        chars
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn no_key_and_no_size_panics_and_the_selection_is_a_vm_of_the_list(
        all in proptest::collection::vec(vm(), 0..12),
        keys in proptest::collection::vec((key(), 1u16..200, 1u16..60, any::<bool>()), 1..40),
    ) {
        let mut app = App::new(SECOND);
        app.vms = (1..).map(id).zip(all).collect();
        app.settle(0);
        for (key, width, height, ascii) in keys {
            press(&mut app, key);
            screen(&mut app, width, height, TerminalStyle { ascii, colors: !ascii });
            let visible = app.visible();
            prop_assert!(app.selected.map_or(visible.is_empty(), |id| visible.contains(&id)));
        }
        for (width, height) in [(1, 1), (20, 5), (1, 60), (200, 1)] {
            screen(&mut app, width, height, TerminalStyle::default());
        }
    }
}
