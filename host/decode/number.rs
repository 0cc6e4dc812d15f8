//! Exact numbers and base64 out of text: digits are shifted, never rounded and never through a double.
//! Never guesses: a number is written as JSON writes it (no leading zeros, no plus sign, no blanks).
//! Used by `decode::value`, which knows the column types.

/// Why a text is not the number that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NumberError {
    /// It is not written as a number.
    Shape,
    /// It has digits below the last place that is kept.
    Inexact,
    /// It is too large.
    Range,
}

/// Returns `text` times ten to the power of `scale`, if that is exactly a whole number.
pub(super) fn exact(text: &str, scale: i8) -> Result<i128, NumberError> {
    let (negative, digits) = split_sign(text.as_bytes());
    let magnitude = match short(digits) {
        Some(n) if scale == 0 => n,
        _ => shifted(&Parts::of(digits).ok_or(NumberError::Shape)?, scale)?,
    };
    Ok(if negative { -magnitude } else { magnitude })
}

/// Returns whether `text` is a number as JSON writes it.
pub(super) fn is_number(text: &str) -> bool {
    Parts::of(split_sign(text.as_bytes()).1).is_some()
}

/// Returns `unscaled`, which has `from` digits after the point, with `to` of them.
pub(super) fn rescale(unscaled: i128, from: i8, to: i8) -> Result<i128, NumberError> {
    let shift = to as i32 - from as i32;
    let power = power_of_ten(shift.unsigned_abs() as u64);
    match (shift >= 0, power) {
        _ if unscaled == 0 => Ok(0),
        (true, Some(p)) => unscaled.checked_mul(p as i128).ok_or(NumberError::Range),
        (true, None) => Err(NumberError::Range),
        (false, Some(p)) if unscaled % p as i128 == 0 => Ok(unscaled / p as i128),
        (false, _) => Err(NumberError::Inexact),
    }
}

/// Returns whether `unscaled` has at most `precision` digits.
pub(super) fn fits(unscaled: i128, precision: u8) -> bool {
    power_of_ten(precision as u64).is_some_and(|p| unscaled.unsigned_abs() < p)
}

fn power_of_ten(exponent: u64) -> Option<u128> {
    (exponent <= 38).then(|| 10u128.pow(exponent as u32))
}

fn split_sign(bytes: &[u8]) -> (bool, &[u8]) {
    match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    }
}

/// Most numbers: up to eighteen digits and nothing else.
fn short(digits: &[u8]) -> Option<i128> {
    if digits.is_empty() || digits.len() > 18 || (digits.len() > 1 && digits[0] == b'0') {
        return None;
    }
    digits.iter().try_fold(0i64, |n, d| d.is_ascii_digit().then(|| n * 10 + (d - b'0') as i64)).map(i128::from)
}

struct Parts<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl Parts<'_> {
    fn of(unsigned: &[u8]) -> Option<Parts<'_>> {
        let run = |b: &[u8]| b.iter().take_while(|c| c.is_ascii_digit()).count();
        let (whole, mut rest) = unsigned.split_at(run(unsigned));
        if whole.is_empty() || (whole.len() > 1 && whole[0] == b'0') {
            return None;
        }
        let mut fraction: &[u8] = &[];
        if let [b'.', tail @ ..] = rest {
            (fraction, rest) = tail.split_at(run(tail));
            if fraction.is_empty() {
                return None;
            }
        }
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', tail @ ..] => {
                let (negative, digits) = match tail {
                    [b'-', d @ ..] => (true, d),
                    [b'+', d @ ..] => (false, d),
                    d => (false, d),
                };
                if digits.is_empty() || run(digits) != digits.len() {
                    return None;
                }
                // Far enough out, one exponent is like another.
                let n = digits.iter().fold(0i64, |n, d| (n * 10 + (d - b'0') as i64).min(1 << 40));
                if negative { -n } else { n }
            }
            _ => return None,
        };
        Some(Parts { whole, fraction, exponent })
    }
}

fn shifted(parts: &Parts, scale: i8) -> Result<i128, NumberError> {
    let mut coefficient: u128 = 0;
    // Zeros wait until a digit follows, so that the coefficient never ends in one.
    let mut zeros = 0u64;
    for d in parts.whole.iter().chain(parts.fraction) {
        if *d == b'0' {
            zeros += 1;
            continue;
        }
        if coefficient != 0 {
            let power = power_of_ten(zeros + 1).ok_or(NumberError::Range)?;
            coefficient = coefficient.checked_mul(power).ok_or(NumberError::Range)?;
        }
        coefficient = coefficient.checked_add((d - b'0') as u128).ok_or(NumberError::Range)?;
        zeros = 0;
    }
    if coefficient == 0 {
        return Ok(0);
    }
    let shift = parts.exponent + zeros as i64 - parts.fraction.len() as i64 + scale as i64;
    if shift < 0 {
        return Err(NumberError::Inexact);
    }
    let power = power_of_ten(shift as u64).ok_or(NumberError::Range)?;
    coefficient.checked_mul(power).and_then(|n| i128::try_from(n).ok()).ok_or(NumberError::Range)
}

/// Appends `bytes` in base64, as [`base64`] takes it.
pub(super) fn to_base64(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let at = |i: usize| group.get(i).map_or(0, |b| *b as u32);
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let digit = |i: u32| DIGITS[(bits >> (18 - 6 * i) & 63) as usize];
        out.extend_from_slice(&[digit(0), digit(1), b'=', b'=']);
        let end = out.len();
        (1..group.len() as u32).for_each(|i| out[end - 3 + i as usize] = digit(i + 1));
    }
}

/// Appends the bytes that `text` stands for in base64 (RFC 4648, section 4: padded, one spelling
/// for each value), or returns false and leaves `out` as it was.
pub(super) fn base64(text: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let good = base64_groups(text, out).is_some();
    if !good {
        out.truncate(start);
    }
    good
}

fn base64_groups(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let digit = |c: u8| {
        Some(match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        } as u32)
    };
    let (groups, odd) = text.as_chunks::<4>();
    if !odd.is_empty() {
        return None;
    }
    for (i, group) in groups.iter().enumerate() {
        let padding = match group {
            [_, _, b'=', b'='] => 2,
            [_, _, _, b'='] => 1,
            _ => 0,
        };
        if padding > 0 && i + 1 < groups.len() {
            return None;
        }
        let bits = group[..4 - padding].iter().try_fold(0u32, |n, c| Some(n << 6 | digit(*c)?))? << (6 * padding);
        if bits & ((1 << (8 * padding)) - 1) != 0 {
            return None;
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use NumberError::*;

    #[test]
    fn a_number_is_exact_or_it_is_an_error() {
        for (text, scale, expected) in [
            ("9007199254740993", 0, Ok(9007199254740993)),
            ("9.007199254740993e15", 0, Ok(9007199254740993)),
            ("9.007199254740993E+15", 0, Ok(9007199254740993)),
            ("18446744073709551616", 0, Ok(18446744073709551616)),
            ("1.0", 0, Ok(1)),
            ("1.5", 0, Err(Inexact)),
            ("10e-1", 0, Ok(1)),
            ("-0", 0, Ok(0)),
            ("-0.00", 2, Ok(0)),
            ("0e999999999999999999999", 2, Ok(0)),
            ("90071992547409.93", 2, Ok(9007199254740993)),
            ("0.10", 2, Ok(10)),
            ("-0.2", 2, Ok(-20)),
            ("19.995", 2, Err(Inexact)),
            ("19.990", 2, Ok(1999)),
            ("1e-3", 2, Err(Inexact)),
            ("100000e-7", 2, Ok(1)),
            ("1e400", 2, Err(Range)),
            ("1e-400", 2, Err(Inexact)),
            ("99999999999999999999999999999999999999", 0, Ok(10i128.pow(38) - 1)),
            ("123456789012345678901234567890123456789012", 0, Err(Range)),
            ("007", 0, Err(Shape)),
            ("+7", 0, Err(Shape)),
            (" 7", 0, Err(Shape)),
            ("7 ", 0, Err(Shape)),
            ("1,50", 2, Err(Shape)),
            ("NaN", 2, Err(Shape)),
            (".5", 2, Err(Shape)),
            ("5.", 2, Err(Shape)),
            ("1e", 2, Err(Shape)),
            ("--1", 0, Err(Shape)),
            ("-", 0, Err(Shape)),
            ("", 0, Err(Shape)),
        ] {
            assert_eq!(exact(text, scale), expected, "{text}");
        }
        let long = format!("1.{}", "0".repeat(500));
        assert_eq!(exact(&long, 2), Ok(100));
        assert!(fits(99, 2) && !fits(100, 2) && !fits(-100, 2) && fits(10i128.pow(38) - 1, 38));
    }

    #[test]
    fn a_decimal_changes_its_scale_only_exactly() {
        for (unscaled, from, to, expected) in [
            (150, 2, 1, Ok(15)),
            (155, 2, 1, Err(Inexact)),
            (15, 1, 3, Ok(1500)),
            (1, 0, 38, Ok(10i128.pow(38))),
            (2, 0, 38, Err(Range)),
            (7, -2, 0, Ok(700)),
        ] {
            assert_eq!(rescale(unscaled, from, to), expected, "{unscaled} {from} {to}");
        }
    }

    #[test]
    fn base64_has_one_spelling() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")] {
            let (mut out, mut back) = (vec![], vec![]);
            to_base64(bytes.as_bytes(), &mut back);
            assert_eq!(back, text.as_bytes());
            assert!(base64(text.as_bytes(), &mut out));
            assert_eq!(out, bytes.as_bytes());
        }
        for bad in ["Zg", "Zg=", "Zh==", "Zg==Zg==", "Zm9 ", "=m9v", "Zm9-", "===="] {
            let mut out = vec![9];
            assert!(!base64(bad.as_bytes(), &mut out) && out == [9], "{bad}");
        }
    }
}
