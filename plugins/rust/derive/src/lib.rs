//! `#[derive(Row)]`: a struct with named fields is a row, its fields are the columns.
//! Never looks at types: the compiler asks each field's type for the column's, through `Value`.
//! `restitch-guest` exports it beside the trait.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use std::collections::HashSet;
use syn::{Data, DeriveInput, Error, Field, Fields, GenericParam, Lifetime, LitStr, Result, ext::IdentExt, parse_macro_input, spanned::Spanned};

/// Makes a row of a struct: each field is a column of that name and type, `Option` makes it nullable.
///
/// `#[row(name = "order-id")]` on a field gives its column another name.
#[proc_macro_derive(Row, attributes(row))]
pub fn derive_row(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = named_fields(input)?;
    let (life, declared) = lifetime(input)?;
    let (name, idents) = (&input.ident, fields.iter().map(|f| &f.ident).collect::<Vec<_>>());
    let names = column_names(&fields)?;
    // Spans of the fields, so that a type that no column can have is underlined where it stands.
    let columns = fields.iter().zip(&names).map(|(field, name)| {
        let ty = &field.ty;
        quote_spanned! { ty.span() =>
            ::restitch_guest::Field {
                name: ::std::string::String::from(#name),
                data_type: <#ty as ::restitch_guest::Value<#life>>::TYPE,
                nullable: <#ty as ::restitch_guest::Value<#life>>::NULLABLE,
            }
        }
    });
    Ok(quote! {
        #[automatically_derived]
        impl<#life> ::restitch_guest::Row<#life> for #name #declared {
            fn fields() -> ::std::vec::Vec<::restitch_guest::Field> {
                ::std::vec![#(#columns),*]
            }
            #[inline]
            fn read(columns: &[::restitch_guest::View<#life>], row: usize) -> Self {
                let mut columns = columns.iter();
                #name { #(#idents: ::restitch_guest::Value::read(columns.next().expect("a column for every field"), row)),* }
            }
            #[inline]
            fn write(&self, columns: &mut [::restitch_guest::Builder]) {
                let mut columns = columns.iter_mut();
                #(::restitch_guest::Value::write(&self.#idents, columns.next().expect("a column for every field"));)*
            }
        }
    })
}

fn named_fields(input: &DeriveInput) -> Result<Vec<&Field>> {
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) if !fields.named.is_empty() => Ok(fields.named.iter().collect()),
            _ => Err(Error::new_spanned(&input.ident, "a row needs named fields: each is a column")),
        },
        _ => Err(Error::new_spanned(&input.ident, "a row is a struct: its fields are the columns")),
    }
}

/// Returns the lifetime that values are borrowed for, and the arguments of the struct.
fn lifetime(input: &DeriveInput) -> Result<(Lifetime, TokenStream)> {
    let mut parameters = input.generics.params.iter();
    match (parameters.next(), parameters.next()) {
        (None, _) => Ok((Lifetime::new("'row", input.ident.span()), TokenStream::new())),
        (Some(GenericParam::Lifetime(life)), None) => {
            let life = life.lifetime.clone();
            let declared = quote!(<#life>);
            Ok((life, declared))
        }
        _ => Err(Error::new_spanned(&input.generics, "a row has one lifetime at most, and no types: its columns have to be known")),
    }
}

/// Returns the name of each field's column.
fn column_names(fields: &[&Field]) -> Result<Vec<String>> {
    let mut seen = HashSet::new();
    let name = |field: &&Field| {
        let mut name = field.ident.as_ref().map(|i| i.unraw().to_string()).unwrap_or_default();
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("row")) {
            attribute.parse_nested_meta(|meta| match meta.path.is_ident("name") {
                true => {
                    name = meta.value()?.parse::<LitStr>()?.value();
                    Ok(())
                }
                false => Err(meta.error("`name = \"…\"` is all there is")),
            })?;
        }
        match (name.trim().is_empty(), seen.insert(name.to_lowercase())) {
            (true, _) => Err(Error::new_spanned(field, "a column needs a name")),
            (_, false) => Err(Error::new_spanned(field, format!("a second column {name:?} (case does not count)"))),
            _ => Ok(name),
        }
    };
    fields.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> String {
        expand(&syn::parse_str(code).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_row_is_told_why() {
        assert_eq!(refused("enum E { A }"), "a row is a struct: its fields are the columns");
        assert_eq!(refused("struct S(i32);"), "a row needs named fields: each is a column");
        assert_eq!(refused("struct S {}"), "a row needs named fields: each is a column");
        assert!(refused("struct S<T> { a: T }").starts_with("a row has one lifetime at most"));
        assert!(refused("struct S<'a, 'b> { a: &'a str, b: &'b str }").starts_with("a row has one lifetime at most"));
        assert_eq!(refused("struct S { #[row(rename = \"b\")] a: i32 }"), "`name = \"…\"` is all there is");
        assert_eq!(refused("struct S { a: i32, #[row(name = \"A\")] b: i32 }"), "a second column \"A\" (case does not count)");
        assert_eq!(refused("struct S { #[row(name = \" \")] b: i32 }"), "a column needs a name");
    }

    #[test]
    fn a_row_is_expanded_with_its_lifetime_or_one_of_its_own() {
        let text = |code: &str| expand(&syn::parse_str(code).unwrap()).unwrap().to_string();
        assert!(text("struct S<'a> { r#type: &'a str }").contains("impl < 'a > :: restitch_guest :: Row < 'a > for S < 'a >"));
        assert!(text("struct S { a: i32 }").contains("impl < 'row > :: restitch_guest :: Row < 'row > for S {"));
        assert!(text("struct S { r#type: i32 }").contains("from (\"type\")"));
    }
}
