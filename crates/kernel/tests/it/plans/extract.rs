//! Every statement there is: the SQL literals of the crate, and what functions in SQL and PL/pgSQL consist of. PostgreSQL does not say
//! which statements a function has, so its text is read: as much of the language as ours use. What cannot be read cannot be planned, and fails.

use std::{collections::BTreeMap, fs, path::Path};

use sqlx::{AssertSqlSafe, PgConnection};
use waybill_testkit::TestDb;

pub(crate) struct Statement {
    /// The file of a literal, or the function.
    pub(crate) place: String,
    /// With `$n` in the place of variables.
    pub(crate) sql: String,
    /// The types of the parameters. `None` means that they follow from the statement.
    pub(crate) types: Vec<String>,
    /// Who may run it.
    pub(crate) roles: Vec<String>,
}

impl Statement {
    pub(crate) fn of_the_service(place: &str, sql: &str) -> Statement {
        let roles = vec!["waybill_service".to_owned()];
        Statement { place: place.to_owned(), sql: sql.to_owned(), types: Vec::new(), roles }
    }
}

pub(crate) async fn all(t: &TestDb) -> Vec<Statement> {
    let mut statements = literals();
    statements.extend(functions(t).await);
    statements
}

/// A superuser's session with the settings that the service logs in with.
pub(crate) async fn session(t: &TestDb) -> PgConnection {
    let mut session = t.admin().await;
    let settings: Vec<String> =
        sqlx::query_scalar("select unnest(rolconfig) from pg_roles where rolname = 'waybill_service'")
            .fetch_all(&mut session)
            .await
            .unwrap();
    for setting in settings.iter().filter_map(|setting| setting.split_once('=')) {
        let set = format!("set {} = '{}'", setting.0, setting.1);
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut session).await.unwrap();
    }
    sqlx::raw_sql("set waybill.project = '00000000-0000-0000-0000-000000000001'").execute(&mut session).await.unwrap();
    // The rows that a statement's trigger is handed.
    let handed: Vec<(String, String)> =
        sqlx::query_as("select tgnewtable::text, tgrelid::regclass::text from pg_trigger where tgnewtable is not null and tgparentid = 0")
            .fetch_all(&mut session)
            .await
            .unwrap();
    for (name, table) in handed {
        let make = format!("create temp table if not exists {name} (like {table}); grant select on {name} to public");
        sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut session).await.unwrap();
    }
    session
}

/// The SQL literals of the crate, with the file each stands in.
pub(crate) fn literals() -> Vec<Statement> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                let file = path.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
                for call in source.split("sqlx::query").skip(1) {
                    let Some((before, rest)) = call.split_once('"') else { continue };
                    // Types of the answer may stand before the bracket, and nothing else.
                    if before.contains(';') || !before.trim_end().ends_with('(') {
                        continue;
                    }
                    let (sql, _) = rest.split_once('"').expect("a literal ends");
                    let sql = sql.replace("\\\\", "\\");
                    let mut statement = Statement::of_the_service(&file, &sql);
                    // Migrations and what only the owner may do.
                    statement.roles.push("postgres".to_owned());
                    found.push(statement);
                }
            }
        }
    }
    found
}

#[derive(sqlx::FromRow)]
struct Function {
    schema: String,
    name: String,
    source: String,
    is_plpgsql: bool,
    owner: String,
    /// The scheduler's functions call it.
    is_the_schedulers: bool,
    names: Vec<String>,
    types: Vec<String>,
    modes: Vec<String>,
    /// Of a trigger: what it is on.
    on_table: Option<String>,
}

async fn functions(t: &TestDb) -> Vec<Statement> {
    let mut admin = t.admin().await;
    let functions: Vec<Function> = sqlx::query_as(
        "select n.nspname::text as schema, p.proname::text as name, p.prosrc as source, l.lanname = 'plpgsql' as is_plpgsql,
                p.proowner::regrole::text as owner, has_function_privilege('waybill_scheduler', p.oid, 'execute') as is_the_schedulers,
                coalesce(p.proargnames, '{}') as names,
                array(select format_type(t, null) from unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality as x (t, n)
                       order by n) as types,
                coalesce(p.proargmodes::text[], '{}') as modes,
                (select min(g.tgrelid::regclass::text) from pg_trigger g where g.tgfoid = p.oid and g.tgparentid = 0) as on_table
           from pg_proc p
           join pg_namespace n on n.oid = p.pronamespace
           join pg_language l on l.oid = p.prolang
          where n.nspname in ('cardbox', 'resource', 'state', 'scheduler')
          order by 1, 2",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    let columns: Vec<(String, String, String)> = sqlx::query_as(
        "select c.oid::regclass::text, a.attname::text, format_type(a.atttypid, null)
           from pg_attribute a
           join pg_class c on c.oid = a.attrelid
           join pg_namespace n on n.oid = c.relnamespace
          where n.nspname in ('cardbox', 'resource', 'state') and c.relkind in ('r', 'p', 'c') and a.attnum > 0 and not a.attisdropped",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    let columns = Columns(columns.into_iter().map(|(table, column, kind)| ((table, column), kind)).collect());
    functions.iter().flat_map(|function| function.statements(&columns)).collect()
}

/// What type a column has.
struct Columns(BTreeMap<(String, String), String>);

impl Columns {
    fn of(&self, table: &str, column: &str) -> String {
        self.0.get(&(table.to_owned(), column.to_owned())).cloned().unwrap_or_else(|| "unknown".to_owned())
    }

    /// Of a record's field: a word means the same wherever it stands.
    fn named(&self, column: &str) -> String {
        let found = self.0.iter().find(|((_, name), _)| name == column).map(|(_, kind)| kind.clone());
        found.unwrap_or_else(|| if column.ends_with("_ids") { "uuid[]" } else { "unknown" }.to_owned())
    }
}

impl Function {
    fn statements(&self, columns: &Columns) -> Vec<Statement> {
        let source = without_comments(&self.source);
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        let uses_columns = self.source.contains("#variable_conflict use_column");
        for (n, (name, kind)) in self.names.iter().zip(&self.types).enumerate() {
            let mode = self.modes.get(n).map_or("i", String::as_str);
            if mode == "i" || mode == "b" || mode == "o" && !uses_columns {
                variables.insert(name.clone(), kind.clone());
            }
        }
        let found = if self.is_plpgsql {
            variables.insert("found".to_owned(), "boolean".to_owned());
            for name in ["new", "old"] {
                variables.extend(self.on_table.iter().map(|table| (name.to_owned(), table.clone())));
            }
            parts(&source.replace("#variable_conflict use_column", ""))
                .iter()
                .filter_map(|part| self.query(part, &mut variables))
                .collect()
        } else {
            source.split(';').map(|sql| sql.trim().to_owned()).filter(|sql| !sql.is_empty()).collect::<Vec<_>>()
        };
        found.into_iter().map(|sql| self.with_parameters(&sql, &variables, columns)).collect()
    }

    /// The query in a part of a body, if there is one. Notes what is declared.
    fn query(&self, part: &str, variables: &mut BTreeMap<String, String>) -> Option<String> {
        let (word, rest) = part.split_once(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or((part, ""));
        let rest = rest.trim();
        let if_any = |expression: &str| contains_word(expression, "select").then(|| format!("select {expression}"));
        match word {
            "insert" | "update" | "delete" | "select" | "with" => Some(without_into(part)),
            "perform" => Some(format!("select {rest}")),
            "if" | "elsif" | "while" => if_any(rest),
            "for" => {
                let (name, over) = rest.split_once(" in ").or_else(|| rest.split_once(" in\n")).expect("for … in");
                let over = over.trim();
                if over.starts_with("select") || over.starts_with("with") {
                    return Some(over.to_owned());
                }
                variables.insert(name.trim().to_owned(), "integer".to_owned());
                None
            }
            "exit" | "continue" => rest.strip_prefix("when").and_then(if_any),
            "return" => match rest.strip_prefix("query") {
                // Built from the name of a schema: search_meaning, which looks at every chunk by design.
                Some(query) if query.trim_start().starts_with("execute") => None,
                Some(query) => Some(query.trim().to_owned()),
                None => if_any(rest),
            },
            "raise" => rest.find("(\n").or_else(|| rest.find("(select")).and_then(|at| if_any(&rest[at..])),
            // Makes partitions, with names that it puts together.
            "execute" | "get" | "end" | "null" | "exception" | "foreach" => None,
            _ => {
                if let Some((_, value)) = part.split_once(":=") {
                    declared(part, variables);
                    return if_any(value.trim());
                }
                assert!(declared(part, variables), "{}.{} has {part:?}", self.schema, self.name);
                None
            }
        }
    }

    /// The query with `$n` in the place of each variable, arguments and fields of records among them.
    fn with_parameters(&self, sql: &str, variables: &BTreeMap<String, String>, columns: &Columns) -> Statement {
        let mut used: Vec<String> = Vec::new();
        let mut types: Vec<String> = Vec::new();
        let mut text = String::new();
        let tokens = tokens(sql);
        let mut n = 0;
        while n < tokens.len() {
            let token = tokens[n];
            let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
            let is_dotted = tokens.get(n + 1) == Some(&".") && tokens.get(n + 2).is_some_and(|field| is_name(field));
            let calls = tokens[n + 1..].iter().find(|token| !token.trim().is_empty()) == Some(&"(");
            let after_a_dot = text.ends_with('.');
            let is_alias = text.trim_end().ends_with(" as") || text.trim_end().ends_with("\nas");
            let kind = match variables.get(token) {
                _ if after_a_dot || is_alias => None,
                // An answer's column, named with its function.
                None if token == self.name && is_dotted => {
                    let at = self.names.iter().position(|name| Some(&name.as_str()) == tokens.get(n + 2));
                    at.map(|at| self.types[at].clone())
                }
                None => None,
                Some(record) if is_dotted && record == "record" => Some(columns.named(tokens[n + 2])),
                Some(table) if is_dotted => Some(columns.of(table, tokens[n + 2])),
                Some(_) if calls => None,
                Some(kind) => Some(kind.clone()),
            };
            let Some(kind) = kind else {
                text.push_str(token);
                n += 1;
                continue;
            };
            let reference = if is_dotted { tokens[n..n + 3].concat() } else { token.to_owned() };
            n += if is_dotted { 3 } else { 1 };
            let at = used.iter().position(|known| *known == reference).unwrap_or_else(|| {
                used.push(reference);
                types.push(kind);
                used.len() - 1
            });
            text.push_str(&format!("${}", at + 1));
        }
        let owner = ["waybill_scheduler", "waybill_eraser", "waybill_remover", "waybill_librarian"]
            .into_iter()
            .find(|role| self.owner == *role);
        let roles = match owner {
            Some(owner) => vec![owner.to_owned()],
            None if self.is_the_schedulers => vec!["waybill_service".to_owned(), "waybill_scheduler".to_owned()],
            // A card is erased by its own role, and its triggers run as that.
            None if self.on_table.is_some() => vec!["waybill_service".to_owned(), "waybill_eraser".to_owned()],
            None => vec!["waybill_service".to_owned()],
        };
        Statement { place: format!("{}.{}", self.schema, self.name), sql: text, types, roles }
    }
}

/// `name type` or `name type := value`.
fn declared(part: &str, variables: &mut BTreeMap<String, String>) -> bool {
    let before = part.split_once(":=").map_or(part, |(before, _)| before);
    let words: Vec<&str> = before.split_whitespace().filter(|word| *word != "constant").collect();
    let [name, kind @ ..] = words.as_slice() else { return false };
    if kind.is_empty() {
        return false;
    }
    variables.insert((*name).to_owned(), kind.join(" "));
    true
}

/// A body in parts: what stands between semicolons, and what `begin`, `then`, `else` and `loop` end.
fn parts(source: &str) -> Vec<String> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let (mut brackets, mut cases) = (0, 0);
    for token in tokens(source) {
        let is_first = part.trim().is_empty();
        match token {
            "(" => brackets += 1,
            ")" => brackets -= 1,
            "case" if brackets == 0 => cases += 1,
            "end" if brackets == 0 && cases > 0 => {
                cases -= 1;
                part.push_str(token);
                continue;
            }
            _ => {}
        }
        let ends = match token {
            ";" | "then" | "loop" => true,
            "begin" | "declare" | "else" => is_first,
            _ => false,
        };
        if ends && brackets == 0 && cases == 0 {
            parts.push(std::mem::take(&mut part).trim().to_owned());
        } else {
            part.push_str(token);
        }
    }
    parts.push(part.trim().to_owned());
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

/// Without `into a, b`, which says where an answer goes; `insert into` stays.
fn without_into(sql: &str) -> String {
    let tokens = tokens(sql);
    let words: Vec<(usize, &str)> =
        tokens.iter().copied().enumerate().filter(|(_, token)| !token.trim().is_empty()).collect();
    let mut text = String::new();
    let mut skipped_to = 0;
    for (place, (n, word)) in words.iter().enumerate() {
        let is_insert = place > 0 && words[place - 1].1 == "insert";
        if *word != "into" || is_insert || *n < skipped_to {
            continue;
        }
        // Names, their fields, and the commas between them.
        let mut end = place + 1 + usize::from(words.get(place + 1).is_some_and(|(_, word)| *word == "strict"));
        let mut expects_name = true;
        while let Some((_, word)) = words.get(end) {
            let is_name = word.starts_with(|c: char| c.is_alphabetic() || c == '_');
            if is_name == expects_name && (is_name || *word == "," || *word == ".") {
                expects_name = !is_name;
                end += 1;
            } else {
                break;
            }
        }
        text.push_str(&tokens[skipped_to..*n].concat());
        skipped_to = words.get(end).map_or(tokens.len(), |(n, _)| *n);
    }
    text.push_str(&tokens[skipped_to..].concat());
    text
}

fn contains_word(sql: &str, word: &str) -> bool {
    tokens(sql).contains(&word)
}

fn without_comments(sql: &str) -> String {
    let mut text = String::new();
    let mut rest = sql;
    while let Some(at) = rest.find("--") {
        // Two dashes in a string are none.
        let is_text = rest[..at].matches('\'').count() % 2 == 1;
        let end = if is_text { at + 2 } else { at };
        text.push_str(&rest[..end]);
        rest = &rest[at + 2..];
        if !is_text {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        }
    }
    text + rest
}

/// Words, strings, white space, `:=`, and each other sign for itself.
fn tokens(sql: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let run = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let end = match first {
            '\'' | '"' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
            ':' if rest.starts_with(":=") => 2,
            c if c.is_whitespace() => run(char::is_whitespace),
            c if c.is_alphabetic() || c == '_' => run(|c| c.is_alphanumeric() || c == '_'),
            c => c.len_utf8(),
        };
        tokens.push(&rest[..end]);
        rest = &rest[end..];
    }
    tokens
}
