//! Search in knowledge: by exact terms in Chinese and English among thousands of chunks, by meaning where the database has vectors, and
//! how long a search takes as the number of chunks grows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sqlx::PgConnection;
use waybill_context::knowledge::question;
use waybill_core::{
    artifact::ArtifactPath,
    id::ProjectId,
    resource::{Manifest, Shelf},
};
use waybill_kernel::{
    knowledge::{self, Kind, Search},
    project, resource,
    work::Kernel,
};
use waybill_orchestrator::knowledge::{Applied, apply};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    installation::Installation,
    knowledge::{self as librarian, embed_next},
    model::Models,
};

use super::{fresh_database, progress};
use crate::{
    figure::{Bar, Figure},
    storm::dice::Dice,
    tools::Outside,
};
use waybill_services::Private;

/// How many chunks and questions.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Chunks at first.
    pub few: usize,
    /// Chunks in the end.
    pub many: usize,
    pub questions: usize,
    /// Whether to search by vectors. Without them, the benchmark checks that search by words works and says that there are no vectors.
    pub vectors: bool,
}

const DATABASE: &str = "waybill_knowledge";
const CHUNKS_PER_DOCUMENT: usize = 50;

pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let project_id = ProjectId::new();
    let mut work = kernel.begin(project_id).await?;
    project::create(&mut work, "library").await?;
    work.commit().await?;
    let mut corpus = Corpus { dice: Dice::new(20_261_116), facts: Vec::new(), n_documents: 0 };
    let bar = progress("documents", options.many as u64);
    corpus.grow(&kernel, project_id, options.few, &bar).await?;
    let n_few = count(&mut admin).await?;
    let asked: Vec<Fact> = corpus.sample(options.questions);
    let found = asked_all(&kernel, project_id, &asked).await?;
    let recall = |chinese: bool| {
        let of: Vec<bool> =
            asked.iter().zip(&found.hits).filter(|(fact, _)| fact.chinese == chinese).map(|(_, hit)| *hit).collect();
        of.iter().filter(|hit| **hit).count() as f64 / of.len().max(1) as f64
    };
    let mut figures = vec![
        Figure::new("chunks at first", n_few as f64, "chunks", Bar::AtLeast(5_000.0)),
        Figure::new("recall@5 of exact terms, English", recall(false), "", Bar::AtLeast(0.95)),
        Figure::new("recall@5 of exact terms, Chinese", recall(true), "", Bar::AtLeast(0.95)),
    ];
    figures.extend(by_meaning(&options, &kernel, &mut admin, project_id, &asked).await?);

    corpus.grow(&kernel, project_id, options.many, &bar).await?;
    bar.finish_and_clear();
    sqlx::raw_sql("analyze resource.chunks; analyze resource.words; analyze resource.documents")
        .execute(&mut admin)
        .await?;
    let n_many = count(&mut admin).await?;
    let again = asked_all(&kernel, project_id, &asked).await?;
    let recall = again.hits.iter().filter(|hit| **hit).count() as f64 / asked.len() as f64;
    let ratio = again.median.as_secs_f64() / found.median.as_secs_f64().max(1e-9);
    figures.extend([
        Figure::new("chunks in the end", n_many as f64, "chunks", Bar::AtLeast(options.many as f64)),
        Figure::new("recall@5 of exact terms among all", recall, "", Bar::AtLeast(0.95)),
        Figure::new("a search among few", found.median.as_secs_f64() * 1e3, "ms", Bar::None),
        Figure::new("a search among all ÷ among few", ratio, "×", Bar::AtMost(3.0)),
    ]);
    Ok(figures)
}

async fn count(admin: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from resource.chunks").fetch_one(admin).await?)
}

/// A fact that exactly one chunk states.
#[derive(Clone, Debug)]
struct Fact {
    question: String,
    /// A text that only that chunk contains.
    says: String,
    chinese: bool,
}

struct Corpus {
    dice: Dice,
    facts: Vec<Fact>,
    n_documents: usize,
}

const SYLLABLES: [&str; 24] = [
    "ka", "ze", "phyr", "mi", "ro", "tal", "ven", "dor", "qui", "san", "bel", "tor", "nix", "gal", "rem", "osk", "ula",
    "wen", "fi", "dra", "hes", "pol", "juk", "yar",
];
const DEVICES: [(&str, &str); 8] = [
    ("gateway", "网关"),
    ("printer", "打印机"),
    ("warehouse", "仓库"),
    ("boiler", "锅炉"),
    ("telescope", "望远镜"),
    ("archive", "档案室"),
    ("pump", "水泵"),
    ("scanner", "扫描仪"),
];
const MATTERS: [(&str, &str); 6] = [
    ("warranty period", "保修期"),
    ("inspection interval", "检查周期"),
    ("log retention", "日志保留时间"),
    ("maximum load", "最大负载"),
    ("supplier code", "供应商编号"),
    ("operating temperature", "工作温度"),
];
const NAMES: &str = "青鸾峪沧澜岫霁云溪墨竹轩碧梧听雨楼寒江雪疏影暗香玉衡摇光天璇开阳北辰南斗朱雀白虎玄武麒麟凤凰苍穹星河明月清风长庚启明紫微太白";
const FILLER: [&str; 10] = [
    "Please read the general safety rules before you begin, and keep a copy of them near the place of work.",
    "Every change is written down with the date, the person and the reason, so that the next shift can follow it.",
    "If something is not clear, ask the team that is responsible before you go on with the procedure.",
    "The schedule is reviewed at the end of each quarter together with the people who use the equipment.",
    "Spare parts are ordered through the usual form, which has to be signed by the head of the department.",
    "开始工作之前，请先阅读安全规定，并在工作地点保留一份副本。",
    "每一次更改都要写明日期、人员和原因，以便下一班的同事了解情况。",
    "如有不清楚的地方，请先询问负责的团队，然后再继续操作。",
    "每个季度结束时，会与使用设备的人员一起检查计划。",
    "备件通过通常的表格订购，表格必须由部门负责人签字。",
];

impl Corpus {
    /// Adds documents until there are `chunks` chunks.
    async fn grow(
        &mut self,
        kernel: &Kernel,
        project_id: ProjectId,
        chunks: usize,
        bar: &indicatif::ProgressBar,
    ) -> Result<()> {
        while self.facts.len() < chunks {
            let mut text = String::from("# Operations manual\n");
            for _ in 0..CHUNKS_PER_DOCUMENT {
                text += &self.section();
            }
            self.n_documents += 1;
            let path: ArtifactPath = format!("manuals/{:05}.md", self.n_documents).parse()?;
            let mut work = kernel.begin(project_id).await?;
            let applied = Applied { path: &path, title: "Operations manual", text: &text, is_external: false };
            let (document, _) = apply(&mut work, applied, "bench").await?;
            ensure!(document.n_chunks as usize == CHUNKS_PER_DOCUMENT, "{} chunks", document.n_chunks);
            work.commit().await?;
            bar.inc(CHUNKS_PER_DOCUMENT as u64);
        }
        Ok(())
    }

    /// Returns a section: a heading, a few filler sentences, and one that states a new fact.
    fn section(&mut self) -> String {
        let n = self.facts.len();
        let dice = &mut self.dice;
        let chinese = n % 2 == 1;
        let (device, in_chinese) = DEVICES[dice.one_of(DEVICES.len())];
        let (matter, of_it) = MATTERS[dice.one_of(MATTERS.len())];
        let value = 2 + dice.one_of(9_000);
        let (says, question) = if chinese {
            let names: Vec<char> = NAMES.chars().collect();
            let name: String = (0..3).map(|_| names[dice.one_of(names.len())]).collect();
            // A number makes the name unique, as a serial number would.
            let name = format!("{name}{}号{in_chinese}", n % 10_000);
            (format!("{name}的{of_it}是{value}。"), format!("请问{name}的{of_it}是多少？"))
        } else {
            let parts: String = (0..3).map(|_| SYLLABLES[dice.one_of(SYLLABLES.len())]).collect();
            let mut name = parts;
            name[..1].make_ascii_uppercase();
            let name = format!("{name}-{n}");
            (
                format!("The {matter} of the {name} {device} is {value}."),
                format!("What is the {matter} of the {name} {device}?"),
            )
        };
        let filler = |dice: &mut Dice| FILLER[dice.one_of(5) + if chinese { 5 } else { 0 }];
        let before: String = (0..2).map(|_| format!("{} ", filler(dice))).collect();
        let after: String = (0..2).map(|_| format!("{} ", filler(dice))).collect();
        let heading = if chinese { format!("## 第{n}节") } else { format!("## Section {n}") };
        self.facts.push(Fact { question, says: says.clone(), chinese });
        format!("{heading}\n\n{before}{says} {after}\n\n")
    }

    fn sample(&mut self, n: usize) -> Vec<Fact> {
        let step = (self.facts.len() / n.max(1)).max(1);
        // An odd step, so that the sample has both languages.
        let step = if step.is_multiple_of(2) { step - 1 } else { step };
        self.facts.iter().step_by(step.max(1)).take(n).cloned().collect()
    }
}

struct Found {
    hits: Vec<bool>,
    median: Duration,
}

/// Asks every question twice; the second time counts.
async fn asked_all(kernel: &Kernel, project_id: ProjectId, facts: &[Fact]) -> Result<Found> {
    let (mut hits, mut times) = (Vec::new(), Vec::new());
    for round in 0..2 {
        hits.clear();
        for fact in facts {
            let words = question(&fact.question);
            let search =
                Search { kind: Kind::Knowledge, folders: vec!["manuals"], words: &words, meaning: None, most: 5 };
            let begun = Instant::now();
            let (found, _) = knowledge::search(&mut kernel.begin(project_id).await?, &search).await?;
            if round == 1 {
                times.push(begun.elapsed());
            }
            hits.push(found.iter().any(|found| found.content.contains(&fact.says)));
        }
    }
    times.sort();
    Ok(Found { hits, median: times[times.len() / 2] })
}

/// Documents, and questions that mean the same in other words.
const MEANT: [(&str, &[&str]); 8] = [
    ("Twenty days of holiday are granted to everybody.", &["vacation", "休假"]),
    ("The salary arrives on the last day of a month.", &["wage", "薪水"]),
    ("A laptop is given to whoever joins.", &["computer", "电脑"]),
    ("In case of fire use the stairs.", &["blaze", "着火"]),
    ("The physician comes on Tuesdays.", &["doctor", "医生"]),
    ("Every vehicle is washed on Fridays.", &["car", "汽车"]),
    ("备份每天夜里进行。", &["copies", "backup"]),
    ("会议不超过一小时。", &["meeting", "conference"]),
];

/// Measures search by meaning, where the database has vectors. Where it has none, checks that search still works and says so.
async fn by_meaning(
    options: &Options,
    kernel: &Kernel,
    admin: &mut PgConnection,
    project_id: ProjectId,
    exact: &[Fact],
) -> Result<Vec<Figure>> {
    let outside = Outside::start(Duration::ZERO).await?;
    let embedding = json!({ "settings": { "embedding": { "provider": "vectors", "model": "meanings" } } });
    let mut work = kernel.begin(project_id).await?;
    resource::apply(&mut work, &[serde_json::from_value::<Manifest>(embedding)?]).await?;
    for (n, (says, _)) in MEANT.iter().enumerate() {
        let path: ArtifactPath = format!("house/{n}.md").parse()?;
        apply(&mut work, Applied { path: &path, title: "", text: says, is_external: false }, "bench").await?;
    }
    work.commit().await?;
    let provider =
        json!({ "provider": { "name": "vectors", "adapter": "openai_chat", "base_url": outside.url("/v1") } });
    let installation = Installation::read(vec![serde_json::from_value(provider)?], Secrets::new(None, []));
    let models = installation.map_err(anyhow::Error::msg)?.models();
    if options.vectors {
        let made = sqlx::raw_sql("create extension if not exists vector").execute(&mut *admin).await;
        made.context("the extension `vector` is not there: `.ci/vectors` builds it")?;
    }
    let shelf = |folder: &str| -> Result<Shelf> { Ok(Shelf { folders: [folder.parse()?].into(), block_tokens: None }) };
    if !options.vectors {
        let (hits, how) = ask(kernel, &models, project_id, &shelf("manuals")?, exact).await?;
        let says_so = how.iter().all(|how| how.contains("words alone"));
        let recall = hits as f64 / exact.len() as f64;
        return Ok(vec![
            Figure::new("without vectors: recall@5 of exact terms", recall, "", Bar::AtLeast(0.95)),
            Figure::new("without vectors: searches that say so", f64::from(u8::from(says_so)), "", Bar::AtLeast(1.0)),
        ]);
    }
    let bar = progress("vectors", 0);
    while let Some(n) = embed_next(kernel, &models, project_id).await? {
        bar.inc(n as u64);
    }
    bar.finish_and_clear();
    let meant: Vec<Fact> = MEANT
        .iter()
        .flat_map(|(says, asked)| asked.iter().map(move |asked| (says, asked)))
        .map(|(says, asked)| Fact { question: (*asked).to_owned(), says: (*says).to_owned(), chinese: false })
        .collect();
    let by_words = asked_below(kernel, project_id, &meant).await?;
    let (found, _) = ask(
        kernel,
        &models,
        project_id,
        &Shelf { folders: ["house".parse()?, "manuals".parse()?].into(), block_tokens: None },
        &meant,
    )
    .await?;
    let (exact_found, how) = ask(kernel, &models, project_id, &shelf("manuals")?, exact).await?;
    ensure!(how.iter().all(|how| how == "words and meaning"), "{:?}", how.first());
    Ok(vec![
        Figure::new("with vectors: recall@5 of other words for the same, by words", by_words, "", Bar::None),
        Figure::new(
            "with vectors: recall@5 of other words for the same",
            found as f64 / meant.len() as f64,
            "",
            Bar::AtLeast(0.95),
        ),
        Figure::new(
            "with vectors: recall@5 of exact terms",
            exact_found as f64 / exact.len() as f64,
            "",
            Bar::AtLeast(0.95),
        ),
    ])
}

async fn asked_below(kernel: &Kernel, project_id: ProjectId, facts: &[Fact]) -> Result<f64> {
    let mut hits = 0;
    for fact in facts {
        let words = question(&fact.question);
        let search = Search { kind: Kind::Knowledge, folders: vec!["house"], words: &words, meaning: None, most: 5 };
        let (found, _) = knowledge::search(&mut kernel.begin(project_id).await?, &search).await?;
        hits += usize::from(found.iter().any(|found| found.content.contains(&fact.says)));
    }
    Ok(hits as f64 / facts.len() as f64)
}

/// Searches as an agent does. Returns how many were found, and how.
async fn ask(
    kernel: &Kernel,
    models: &Models,
    project_id: ProjectId,
    shelf: &Shelf,
    facts: &[Fact],
) -> Result<(usize, Vec<String>)> {
    let (mut hits, mut how) = (0, Vec::new());
    for fact in facts {
        let query = librarian::Query { kind: Kind::Knowledge, shelf, question: &fact.question, most: 5 };
        let answer = librarian::search(kernel, models, project_id, &query).await;
        let answer = answer.context("a search")?;
        hits += usize::from(answer.found.iter().any(|found| found.content.contains(&fact.says)));
        how.push(answer.how);
    }
    Ok((hits, how))
}
