//! Which file uses which, inside each crate, from the syntax tree: by imports and paths, and by
//! calls whose receiver's type is declared. `make graph` prints it.
//!
//! Owns: the rule that there are no cycles.
//! Invariants: a name that the root of a crate exports is that of the file which declares it.
//! Not here: which crate uses which (`structure`). Calls whose receiver type must be inferred are
//! not seen.

use overspill_tree::{packages, root, rust_below};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, GenericArgument, Item, Member, Pat, PathArguments, Type};

/// What is compiled into programs by the build script of a crate, apart from its library.
const IMAGES: [&str; 2] = ["crates/agent/gate", "crates/agent/payload"];

/// Circles that there still are: folder, files, and why they are one. Only shrinks.
const CIRCLES: &str = include_str!("../circles.txt");

/// A file and the name of a type that it declares.
type Place = (String, String);
type Edges = BTreeMap<String, BTreeSet<String>>;

/// What a crate declares.
#[derive(Default)]
struct Declared {
    files: Vec<(String, syn::File)>,
    /// File and type declared there.
    types: BTreeSet<(String, String)>,
    /// File and name → file it is imported from.
    imports: BTreeMap<(String, String), String>,
    /// Type (the file that declares it and its name) and function → file. A free function has its
    /// file and no type.
    functions: BTreeMap<(Place, String), String>,
    /// Struct → field → type.
    fields: BTreeMap<Place, BTreeMap<String, Place>>,
}

/// The folders of sources of all crates, the product's and the laboratory's, below the root.
fn folders() -> BTreeSet<String> {
    let target_roots = |package: &Value| {
        let targets = package["targets"].as_array().unwrap().clone().into_iter();
        let built = targets.filter(|target| {
            let kind = target["kind"][0].as_str().unwrap();
            matches!(kind, "lib" | "bin" | "cdylib" | "staticlib" | "rlib")
        });
        built.map(|target| target["src_path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let root = root().canonicalize().unwrap();
    let below = |path: String| {
        // Twins name the sources of those they stand for.
        let path = Path::new(&path).canonicalize().unwrap();
        let folder = path.parent().unwrap().strip_prefix(&root).unwrap();
        folder.to_str().unwrap().to_owned()
    };
    let folders = packages().iter().flat_map(target_roots).map(below).collect::<Vec<_>>();
    let images = IMAGES.map(str::to_owned);
    let checked = |folder: &String| folder.starts_with("crates/") || folder.starts_with("lab/");
    folders.into_iter().chain(images).filter(checked).collect()
}

fn sources(folder: &str) -> Vec<(String, syn::File)> {
    let root = root().join(folder);
    let parse = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
        (name.trim_end_matches("/mod").to_owned(), syn::parse_file(&text).unwrap())
    };
    let is_test = |path: &Path| path.components().any(|part| part.as_os_str() == "tests");
    let is_part = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name != "tests.rs")
            && !is_test(path.strip_prefix(&root).unwrap())
    };
    rust_below(&root).into_iter().filter(is_part).map(parse).collect()
}

/// Whether a file is the root of a crate, whose modules are beside it.
fn is_root(file: &str) -> bool {
    matches!(file, "lib" | "main")
}

/// The relevant type of a declaration: without references, pointers and boxes.
fn core_type(ty: &Type) -> Option<String> {
    match ty {
        Type::Reference(reference) => core_type(&reference.elem),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let name = last.ident.to_string();
            if !matches!(name.as_str(), "Arc" | "Box" | "Mutex" | "Option" | "Vec" | "OnceLock") {
                return Some(name);
            }
            let PathArguments::AngleBracketed(inside) = &last.arguments else { return Some(name) };
            inside.args.iter().find_map(|argument| match argument {
                GenericArgument::Type(ty) => core_type(ty),
                _ => None,
            })
        }
        _ => None,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
        }
        _ => false,
    })
}

impl Declared {
    fn of(name: &str) -> Self {
        let files = sources(name);
        let mut all = Self::default();
        for (file, parsed) in &files {
            parsed.items.iter().for_each(|item| all.declare_type(file, item));
        }
        // What the root exports is known before others import it from there.
        let (roots, others): (Vec<_>, Vec<_>) = files.iter().partition(|(file, _)| is_root(file));
        for (file, parsed) in roots.into_iter().chain(others) {
            let uses = parsed.items.iter().filter(|item| !is_test_item(item));
            uses.for_each(|item| all.import(file, item, &files));
        }
        for (file, parsed) in &files {
            parsed.items.iter().for_each(|item| all.declare(file, item));
        }
        Self { files, ..all }
    }

    fn declare_type(&mut self, file: &str, item: &Item) {
        let name = match item {
            Item::Struct(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            _ => return,
        };
        self.types.insert((file.to_owned(), name.to_string()));
    }

    fn import(&mut self, file: &str, item: &Item, files: &[(String, syn::File)]) {
        let Item::Use(item) = item else { return };
        let mut names = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut names);
        for path in names {
            let name = path[path.len() - 1].clone();
            if let Some(from) = self.file_of(file, path, files) {
                self.imports.insert((file.to_owned(), name), from);
            }
        }
    }

    /// The file that a path, written in `file`, leads to.
    fn file_of(
        &self,
        file: &str,
        mut path: Vec<String>,
        files: &[(String, syn::File)],
    ) -> Option<String> {
        let exists = |name: &str| files.iter().any(|(other, _)| other == name);
        let parts = |name: &str| -> Vec<String> {
            name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let own = if is_root(file) { String::new() } else { file.to_owned() };
        match path[0].as_str() {
            "crate" => drop(path.remove(0)),
            "super" => {
                let mut from = parts(&own);
                while path.first().is_some_and(|part| part == "super") {
                    path.remove(0);
                    from.pop();
                }
                path.splice(..0, from);
            }
            "self" => drop(path.splice(..1, parts(&own))),
            first if exists(&[&own, first].map(|part| part.to_owned()).join("/")) => {
                path.splice(..0, parts(&own));
            }
            first if is_root(file) && exists(first) => {}
            _ => return None,
        }
        let prefixes = (1..=path.len()).rev().map(|len| path[..len].join("/"));
        prefixes.into_iter().find(|prefix| exists(prefix)).or_else(|| {
            let name = path.first()?;
            let root = files.iter().map(|(file, _)| file).find(|file| is_root(file))?;
            let exported = self.imports.get(&(root.clone(), name.clone()));
            Some(exported.unwrap_or(root).clone())
        })
    }

    /// Returns the type that `name` means in `file`.
    fn resolve(&self, file: &str, name: &str) -> Option<Place> {
        let own = (file.to_owned(), name.to_owned());
        if self.types.contains(&own) {
            return Some(own);
        }
        let from = self.imports.get(&own)?;
        let there = (from.clone(), name.to_owned());
        self.types.contains(&there).then_some(there)
    }

    fn declare(&mut self, file: &str, item: &Item) {
        match item {
            Item::Struct(item) => {
                let typed = item.fields.iter().filter_map(|field| {
                    let ty = self.resolve(file, &core_type(&field.ty)?)?;
                    Some((field.ident.as_ref()?.to_string(), ty))
                });
                let typed = typed.collect();
                self.fields.insert((file.to_owned(), item.ident.to_string()), typed);
            }
            Item::Fn(item) => {
                let key = ((file.to_owned(), String::new()), item.sig.ident.to_string());
                self.functions.insert(key, file.to_owned());
            }
            Item::Impl(item) if item.trait_.is_none() => {
                let of = core_type(&item.self_ty).and_then(|name| self.resolve(file, &name));
                let Some(of) = of else { return };
                for member in &item.items {
                    if let syn::ImplItem::Fn(function) = member {
                        let key = (of.clone(), function.sig.ident.to_string());
                        self.functions.insert(key, file.to_owned());
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns file → files it uses.
    fn edges(&self) -> Edges {
        let read = |(file, parsed): &(String, syn::File)| {
            let known = BTreeMap::new();
            let used = BTreeSet::new();
            let mut reader = Reader { declared: self, file, owner: None, known, used };
            let items = parsed.items.iter().filter(|item| !is_test_item(item));
            items.for_each(|item| reader.visit_item(item));
            (file.clone(), reader.used)
        };
        self.files.iter().map(read).collect()
    }
}

/// Collects the paths that a `use` names.
fn flatten(tree: &syn::UseTree, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match tree {
        syn::UseTree::Path(part) => {
            path.push(part.ident.to_string());
            flatten(&part.tree, path, found);
            path.pop();
        }
        syn::UseTree::Name(name) => {
            let whole = if name.ident == "self" {
                path.clone()
            } else {
                path.iter().cloned().chain([name.ident.to_string()]).collect()
            };
            found.push(whole);
        }
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, path, found));
        }
        syn::UseTree::Rename(_) | syn::UseTree::Glob(_) => {}
    }
}

fn is_test_item(item: &Item) -> bool {
    match item {
        Item::Mod(item) => is_test(&item.attrs),
        Item::Use(item) => is_test(&item.attrs),
        Item::Impl(item) => is_test(&item.attrs),
        Item::Fn(item) => is_test(&item.attrs),
        _ => false,
    }
}

/// Walks through one file.
struct Reader<'a> {
    declared: &'a Declared,
    file: &'a str,
    /// The type whose functions are being read.
    owner: Option<Place>,
    /// Types of parameters.
    known: BTreeMap<String, Place>,
    used: BTreeSet<String>,
}

impl Reader<'_> {
    fn use_file(&mut self, file: Option<&String>) {
        self.used.extend(file.filter(|file| *file != self.file).cloned());
    }

    fn resolve(&self, name: &str) -> Option<Place> {
        self.declared.resolve(self.file, name)
    }

    fn use_function(&mut self, of: Place, name: &str) {
        self.use_file(self.declared.functions.get(&(of, name.to_owned())));
    }

    fn type_of(&self, expression: &Expr) -> Option<Place> {
        match expression {
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                if name == "self" { self.owner.clone() } else { self.known.get(&name).cloned() }
            }
            Expr::Field(field) => {
                let Member::Named(name) = &field.member else { return None };
                let of = self.type_of(&field.base)?;
                self.declared.fields.get(&of)?.get(&name.to_string()).cloned()
            }
            Expr::Reference(reference) => self.type_of(&reference.expr),
            Expr::Paren(inside) => self.type_of(&inside.expr),
            _ => None,
        }
    }

    fn note_parameters<'b>(&mut self, inputs: impl Iterator<Item = &'b FnArg>) {
        self.known.clear();
        for input in inputs {
            let FnArg::Typed(typed) = input else { continue };
            let ty = core_type(&typed.ty).and_then(|name| self.resolve(&name));
            if let (Pat::Ident(name), Some(ty)) = (&*typed.pat, ty) {
                self.known.insert(name.ident.to_string(), ty);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_root(self.file) && !matches!(item.vis, syn::Visibility::Inherited) {
            return;
        }
        let mut names = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut names);
        for path in names {
            let key = (self.file.to_owned(), path[path.len() - 1].clone());
            self.use_file(self.declared.imports.get(&key));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.owner = core_type(&item.self_ty).and_then(|name| self.resolve(&name));
        visit::visit_item_impl(self, item);
        self.owner = None;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note_parameters(function.sig.inputs.iter());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note_parameters(function.sig.inputs.iter());
        visit::visit_item_fn(self, function);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Some(of) = self.type_of(&call.receiver) {
            self.use_function(of, &call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1 {
            let file = self.declared.file_of(self.file, names, &self.declared.files);
            self.use_file(file.as_ref());
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let names: Vec<String> =
            path.path.segments.iter().map(|part| part.ident.to_string()).collect();
        if let [.., of, name] = &names[..]
            && let Some(of) = self.resolve(of)
        {
            self.use_function(of, name);
        }
        visit::visit_expr_path(self, path);
    }
}

/// Returns sets of two or more files that reach one another.
fn circles(edges: &Edges) -> Vec<Vec<&str>> {
    let reach = |start: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start.to_owned()]);
        while let Some(file) = next.pop() {
            let new =
                edges.get(&file).into_iter().flatten().filter(|to| seen.insert((*to).clone()));
            next.extend(new.cloned().collect::<Vec<_>>());
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<String>> =
        edges.keys().map(|file| (file.as_str(), reach(file))).collect();
    let mut found: Vec<Vec<&str>> = Vec::new();
    for (&file, to) in &reached {
        let both = |other: &&str| to.contains(*other) && reached[*other].contains(file);
        let circle: Vec<&str> = reached.keys().copied().filter(both).collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// A circle of the list, each of which has a reason.
fn without_reason(line: &str) -> &str {
    let (circle, reason) = line.split_once(" | ").unwrap_or_else(|| panic!("no reason: {line}"));
    assert!(reason.len() > 10, "a reason: {line}");
    circle
}

#[test]
fn files_use_one_another_in_one_direction() {
    let (mut found, folders) = (Vec::new(), folders());
    for folder in &folders {
        let edges = Declared::of(folder).edges();
        let count: usize = edges.values().map(BTreeSet::len).sum();
        println!("{folder}: {} files, {count} edges, circles: {:?}", edges.len(), circles(&edges));
        for (file, used) in &edges {
            println!("  {file} -> {}", used.iter().cloned().collect::<Vec<_>>().join(" "));
        }
        let line = |circle: Vec<&str>| format!("{folder}: {}", circle.join(" "));
        found.extend(circles(&edges).into_iter().map(line));
    }
    println!("{} folders of sources", folders.len());
    let known: Vec<&str> = CIRCLES.lines().map(without_reason).collect();
    let new: Vec<_> = found.iter().filter(|circle| !known.contains(&circle.as_str())).collect();
    assert!(new.is_empty(), "files that use one another in a circle: {new:#?}");
    assert_eq!(found.len(), known.len(), "circles are listed that have been opened");
}
