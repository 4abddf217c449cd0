// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;

fn parse(text: &str) -> Result<Wishes, String> {
    Wishes::parse(text, "w.toml".as_ref()).map_err(|e| e.to_string())
}

#[test]
fn the_example_is_read() {
    let wishes = parse(EXAMPLE).unwrap();
    assert_eq!(wishes.guests.len(), 2);
    assert_eq!(wishes.host.reserve_memory, 2 << 30);
    assert!(wishes.host.reserve_pages && wishes.host.balancing_off);
    let (hpc, web) = (&wishes.guests[0], &wishes.guests[1]);
    assert_eq!((hpc.page, hpc.nodes, hpc.near.len()), (PageSize::Kib(2048), Nodes::Host, 0));
    assert_eq!((web.page, web.nodes, web.io_threads), (PageSize::Auto, Nodes::Auto, 1));
    assert!(web.interrupts_away && !web.tickless && !web.ksm);
}

#[test]
fn each_wrong_value_is_listed_with_its_line() {
    let text = "[host]\nreserve_memory = '2'\ncpus = '3-1'\nhuge_pages = 'some'\nhalt_poll_ns = -1\n\
                [[guest]]\nname = \"a\\u0007\"\nvcpus = 0\nmemory = '0'\nnodes = 0\npage_size = '4M'\nsmt = 'x'\n\
                [[guest]]\nname = 'b'\nvcpus = 1\nmemory = '1Q'\nio_threads = 65\n\
                [[guest]]\nname = 'b'\nvcpus = 1\nmemory = '1M'\n\
                [[guest]]\nname = 'c'\nvcpus = 1\nmemory = '12K'\n";
    let e = parse(text).unwrap_err();
    for expected in [
        "line 2: host.reserve_memory = '2' is no size",
        "line 3: host.cpus = '3-1' is no list",
        "line 4: host.huge_pages = 'some' is not one of reserve, keep",
        "line 5: host.halt_poll_ns = -1 is not 0 to 1000000",
        "line 7: guest.name = \"a\\u0007\" is no name",
        "line 8: guest.vcpus = 0 is not 1 to 4096",
        "line 9: guest.memory = '0' is no memory",
        "line 10: guest.nodes = 0 is neither",
        "line 11: guest.page_size = '4M' is not one of auto, 4K, 2M, 1G",
        "line 12: guest.smt = 'x' is not one of",
        "line 16: guest.memory = '1Q' is no size",
        "line 17: guest.io_threads = 65 is not 0 to 64",
        "line 19: guest.name = 'b' is the name of another guest",
        "line 25: guest.memory = '12K' of guest c is no whole number of 8K",
    ] {
        assert!(e.contains(expected), "{expected}\n{e}");
    }
    assert_eq!(e.lines().count(), 15, "{e}");
}

#[test]
fn what_is_no_toml_or_lacks_a_key_is_told_with_its_line() {
    for (text, expected) in [
        ("[[guest]]\nname = 'a'\nvcpus = 'x'\nmemory = '1G'\n", "line 3"),
        ("[[guest]]\nname = 'a'\nmemory = '1G'\n", "missing field `vcpus`"),
        ("[[guest]\n", "line 1"),
        ("[[gast]]\n", "unknown field `gast`"),
        ("", "no guest"),
    ] {
        let e = parse(text).unwrap_err();
        assert!(e.contains(expected), "{expected}\n{e}");
    }
}

#[test]
fn errors_quote_the_text_without_control_characters_and_in_short_lines() {
    let long = "x".repeat(100_000);
    for text in ["a = \u{1b}[2J\n".to_string(), format!("[host]\n\"{long}\" = 1\n"), format!("{long}\n")] {
        let e = parse(&text).unwrap_err();
        assert!(e.chars().all(|c| c == '\n' || !c.is_control()), "{e:?}");
        assert!(e.len() < 3000 && e.lines().all(|l| l.chars().count() < 500), "{} {e:.2000}", e.len());
    }
    assert!(parse("a = \u{1b}[2J\n").unwrap_err().contains("\\u{1b}[2J"));
}
