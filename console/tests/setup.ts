/** Starts the real `waybill dev`, with two worker processes, and ends it after the tests. */
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'

export const home = resolve(process.env.WAYBILL_HOME ?? join(import.meta.dirname, '../../target/console'))

export default async function setup() {
  const program = resolve(process.env.WAYBILL ?? join(import.meta.dirname, '../../target/debug/waybill'))
  rmSync(home, { recursive: true, force: true })
  mkdirSync(home, { recursive: true })
  const log = openSync(join(home, 'dev.log'), 'w')
  const { DATABASE_URL: _, WAYBILL_NATS_URL: __, ...environment } = process.env
  const server = spawn(program, ['dev', '--data', join(home, 'data'), '--listen', '127.0.0.1:0', '--workers', '2'], {
    cwd: home,
    stdio: ['ignore', log, log],
    env: environment,
  })
  const ended = new Promise(done => server.once('exit', done))
  const ready = join(home, 'data/ready.json')
  for (let tries = 0; !existsSync(ready); tries += 1) {
    if (tries > 600 || server.exitCode !== null) throw new Error(`waybill dev did not start: see ${home}/dev.log`)
    await new Promise(done => setTimeout(done, 200))
  }
  process.env.WAYBILL_URL = JSON.parse(readFileSync(ready, 'utf8')).url
  process.env.WAYBILL_PID = String(server.pid)
  return async () => {
    server.kill('SIGINT')
    await ended
  }
}
