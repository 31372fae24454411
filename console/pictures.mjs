/**
 * Takes the pictures of the console for the READMEs: `node pictures.mjs [FOLDER]`.
 *
 * Starts `waybill dev` in a folder of its own, lets the demo team answer a question, kills its workers in the middle, and looks at the result.
 * `WAYBILL` names the program, `CHROMIUM` the browser. FOLDER is `docs/pictures` if omitted.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { chromium } from '@playwright/test'

const here = import.meta.dirname
const program = resolve(process.env.WAYBILL ?? join(here, '../target/debug/waybill'))
const folder = resolve(process.argv[2] ?? join(here, '../docs/pictures'))
const pause = ms => new Promise(done => setTimeout(done, ms))

const home = mkdtempSync(join(tmpdir(), 'waybill-pictures-'))
const log = join(home, 'dev.log')
const output = openSync(log, 'w')
const options = ['dev', '--data', join(home, 'data'), '--listen', '127.0.0.1:0', '--workers', '2']
const server = spawn(program, options, { cwd: home, stdio: ['ignore', output, output] })
const ended = new Promise(done => server.once('exit', done))
try {
  await pictures(await ready())
} finally {
  server.kill('SIGINT')
  await ended
  rmSync(home, { recursive: true, force: true })
}

async function ready() {
  const file = join(home, 'data/ready.json')
  for (let tries = 0; !existsSync(file); tries += 1) {
    if (tries > 900 || server.exitCode !== null)
      throw new Error(`waybill dev did not start:\n${readFileSync(log, 'utf8')}`)
    await pause(200)
  }
  return JSON.parse(readFileSync(file, 'utf8')).url
}

/** The worker processes that run now: `waybill dev` names each when it starts it. */
function workers() {
  const found = new Map()
  for (const [, n, pid] of readFileSync(log, 'utf8').matchAll(/worker (\d+)(?: restarted)?: process (\d+)/g)) {
    found.set(n, Number(pid))
  }
  return [...found.values()]
}

/** Lets the demo team work on a question, with its workers killed in the middle. Returns the run, and the call to look at. */
async function run(url, instruction) {
  const call = async (method, path, body) => {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${url}/v1/projects/demo/${path}`, {
      method,
      headers,
      body: body && JSON.stringify(body),
    })
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`)
    return answer.json()
  }
  const { agent_turn_id: root } = await call('POST', 'turns', { profile_name: 'publisher', instruction })
  let isKilled = false
  for (;;) {
    const graph = await call('GET', `turns/${root}/graph`)
    const of = name => graph.ids.filter((_, n) => graph.profiles[graph.profile[n]] === name)
    if (!isKilled && of('archivist').length > 0) {
      // A worker that is lost in the middle of a turn is what the picture is to show.
      const { segments } = await call('GET', `turns/${root}/timeline?tree=true`)
      const isRunning = turn => segments.filter(one => one.agent_turn_id === turn).every(one => one.to_ms != null)
      if (of('archivist').some((turn, n) => n > 0 && isRunning(turn))) {
        for (const pid of workers()) process.kill(pid, 'SIGKILL')
        isKilled = true
      }
    }
    const { turn } = await call('GET', `turns/${root}`)
    if (turn.status !== 'open') {
      const { steps } = await call('GET', `turns/${of('editor')[0]}`)
      const last = steps.findLast(step => step.model !== null)
      return { root, turn: of('editor')[0], step: last.step_id }
    }
    for (const { tool_call_id } of (await call('GET', 'requests')).items) {
      await call('POST', `requests/${tool_call_id}`, { decision: 'approved' })
    }
    await pause(50)
  }
}

async function pictures(url) {
  mkdirSync(folder, { recursive: true })
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox'],
  })
  const languages = [
    { language: 'en', mark: '', question: 'How is bread made?' },
    { language: 'zh', mark: 'zh-', question: '面包是怎么做的？' },
  ]
  for (const { language, mark, question } of languages) {
    const { root, turn, step } = await run(url, question)
    for (const theme of ['light', 'dark']) {
      const take = async (name, path, until, height = 800, deviceScaleFactor = 1.5) => {
        const page = await browser.newPage({ viewport: { width: 1280, height }, deviceScaleFactor })
        await page.addInitScript(
          ([language, theme]) => {
            localStorage.setItem('waybill.language', language)
            localStorage.setItem('waybill.theme', theme)
          },
          [language, theme],
        )
        await page.goto(`${url}/ui/demo/${path}`)
        await page.locator(until).first().waitFor()
        await pause(700)
        const file = join(folder, `console-${name}-${mark}${theme}.png`)
        await page.screenshot({ path: file })
        await page.close()
        console.log(`${file} ${Math.round(statSync(file).size / 1000)} kB`)
      }
      await take('run', `runs/${root}`, '[data-ready="true"] canvas')
      // Higher, so that it shows where the message came from; at a smaller scale, so that the file stays small.
      await take('saw', `turns/${turn}/steps/${step}?message=3`, '[data-verified="true"]', 1_040, 1.25)
      await take('runs', 'runs', 'tbody a')
    }
  }
  await browser.close()
}
