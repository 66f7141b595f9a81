'use strict';
// The part of the script that every report page has.

const data = JSON.parse(document.getElementById('data').textContent);
const byId = (id) => document.getElementById(id);

/* Return an element with text or elements in it. Text never becomes HTML. */
function make(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/* Return an element of SVG with attributes. */
function drawn(tag, attributes) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/* Return a name, shortened as by name() in markup.py. */
function nameOf(text) {
  const letters = Array.from(text);
  const made = make('bdi', letters.length <= 60 ? text : letters.slice(0, 40).join('') + '…' + letters.slice(-19).join(''));
  if (letters.length > 60) made.title = text;
  return made;
}

const figureText = (value, digits = 3) => (value === null || Number.isNaN(value) ? '–' : value.toFixed(digits));

/* Replace the rows of a table. The first cell of each row is its header. */
function fillRows(body, rows) {
  body.replaceChildren(...rows.map(([first, ...others]) => {
    const head = make('th', first);
    head.scope = 'row';
    return make('tr', head, ...others.map((cell) => make('td', cell)));
  }));
}

for (const box of document.querySelectorAll('[data-toggle]')) {
  const show = () => {
    for (const one of document.getElementsByClassName(box.dataset.toggle)) one.hidden = !box.checked;
  };
  box.addEventListener('change', show);
  show();
}

{
  const button = byId('dark');
  const show = (dark) => {
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    button.setAttribute('aria-pressed', dark);
  };
  const system = matchMedia('(prefers-color-scheme: dark)');
  show(system.matches);
  system.addEventListener('change', () => show(system.matches));
  button.addEventListener('click', () => show(button.getAttribute('aria-pressed') !== 'true'));
}
