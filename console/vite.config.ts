import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { extname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import react from '@vitejs/plugin-react'
import type { Plugin } from 'vite'
import { defineConfig } from 'vitest/config'

const crate = join(import.meta.dirname, '../crates/console')

const types: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
}

/** Replaces each file of the build by its gzip form, which is what the binary holds and what browsers get, and lists them for Rust. */
function compressed(): Plugin {
  return {
    name: 'compressed',
    apply: 'build',
    writeBundle({ dir: dist = '' }, bundle) {
      const paths = Object.keys(bundle).sort()
      const listed = paths.map(below => {
        const path = join(dist, below)
        const content = readFileSync(path)
        const packed = gzipSync(content, { level: 9 })
        // This byte names the operating system: the same build has the same bytes everywhere.
        packed[9] = 255
        writeFileSync(`${path}.gz`, packed)
        rmSync(path)
        const type = types[extname(path)]
        if (!type) throw new Error(`${below}: name the content type of ${extname(path)} in vite.config.ts`)
        const hash = createHash('sha256').update(content).digest('hex').slice(0, 16)
        return `    File { path: "${below}", content_type: "${type}", hash: "${hash}", gzip: include_bytes!("${below}.gz") },\n`
      })
      writeFileSync(join(dist, 'files.rs'), `&[\n${listed.join('')}]\n`)
      writeFileSync(join(crate, '../../deploy/packages/licences/Console.txt'), licences())
    },
  }
}

/** The licences of all packages that the pages are made from. Every package of Waybill has this file. */
function licences(): string {
  const modules = join(import.meta.dirname, 'node_modules')
  const read = (folder: string) => JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  const found = new Map<string, string>()
  const visit = (names: object = {}) => {
    for (const name of Object.keys(names)) {
      if (found.has(name)) continue
      const folder = join(modules, name)
      const { version, license, dependencies } = read(folder)
      const file = readdirSync(folder).find(one => /^licen[cs]e/i.test(one))
      const text = file ? readFileSync(join(folder, file), 'utf8').trim() : `Licence: ${license}`
      found.set(name, `${name} ${version} (${license})\n\n${text}\n`)
      visit(dependencies)
    }
  }
  visit(read(import.meta.dirname).dependencies)
  const texts = [...found].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, text]) => text)
  return `The console contains these packages.\n\n${texts.join(`\n${'-'.repeat(80)}\n\n`)}`
}

/** The API that `npm run dev` talks to: a running `waybill dev`. */
const api = { target: process.env.WAYBILL_URL ?? 'http://127.0.0.1:7070', changeOrigin: true }

export default defineConfig({
  base: '/ui/',
  plugins: [react(), compressed()],
  build: {
    outDir: join(crate, 'dist'),
    emptyOutDir: true,
    target: 'es2023',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 900,
  },
  worker: { format: 'es' },
  server: { proxy: { '/v1': api, '/ui/session': api, '/ui/login': api } },
  test: { include: ['src/**/*.test.ts', 'src/**/*.test.tsx'], environment: 'node' },
})
